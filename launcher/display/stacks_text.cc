#include "launcher/display/stacks_text.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "launcher/display/terminal_line.h"

namespace cadre::launcher {
namespace {

// "in all_reduce, from train.py:40 in main".
std::string PlaceText(const v1::RankStack& stack) {
  const v1::RankEvidence& evidence = stack.evidence();
  const std::string& what = evidence.python_what();
  const std::string from =
      evidence.python_where().empty() ? "" : absl::StrCat(", from ", evidence.python_where());
  switch (evidence.python()) {
    case v1::IN_COLLECTIVE:
      return absl::StrCat("in ", what, from);
    case v1::IN_DATA_LOADER:
      return absl::StrCat("in the data loader", what.empty() ? "" : ": ", what, from);
    case v1::IMPORTING:
      return absl::StrCat("importing modules", from);
    case v1::IN_OWN_CODE:
      return absl::StrCat("at ", evidence.python_where().empty() ? what : evidence.python_where());
    default:
      return "no Python stack";
  }
}

// Of an installed package its path from there on.
std::string ShortPath(absl::string_view file) {
  for (const absl::string_view packages : {"/site-packages/", "/dist-packages/"}) {
    const size_t at = file.rfind(packages);
    if (at != file.npos) return std::string(file.substr(at + packages.size()));
  }
  return std::string(file);
}

std::string FramesText(const v1::RankStack& stack) {
  std::string text;
  for (const v1::StackFrame& frame : stack.frames()) {
    absl::StrAppend(&text, frame.own() ? "  > " : "    ", ShortPath(frame.file()), ":",
                    frame.line(), frame.function().empty() ? "" : " in ", frame.function(), "\n");
    if (!frame.source().empty()) absl::StrAppend(&text, "        ", frame.source(), "\n");
  }
  if (stack.cut()) absl::StrAppend(&text, "    ... and the calls further out\n");
  if (stack.frames_size() > 0) return text;
  return absl::StrCat("    (", stack.no_python(), ")\n    ", stack.evidence().summary(), "\n");
}

std::string WhoText(const v1::StackGroup& group, uint32_t world_size) {
  const bool one = group.ranks_size() == 1;
  const v1::RankEvidence& evidence = group.first().evidence();
  return absl::StrCat(one ? "rank " : "ranks ", RanksText(group),
                      one ? absl::StrCat(" on ", evidence.node(), ", pid ", evidence.pid())
                          : absl::StrCat(" (", group.ranks_size(), " of ", world_size, ")"));
}

std::string GroupText(const v1::StackGroup& group, uint32_t world_size) {
  return absl::StrCat(WhoText(group, world_size), ": ", PlaceText(group.first()), "\n",
                      FramesText(group.first()));
}

std::string SilentText(const v1::SilentNode& node) {
  return absl::StrCat("node ", node.node(), " (",
                      node.workers() == 1 ? absl::StrCat("rank ", node.first_rank())
                                          : absl::StrCat("ranks ", node.first_rank(), "-",
                                                         node.first_rank() + node.workers() - 1),
                      "): ", node.why(), "\n");
}

std::string SilentNodesText(const v1::GetStacksReply& reply) {
  std::string text;
  for (const v1::SilentNode& node : reply.silent()) absl::StrAppend(&text, SilentText(node));
  if (reply.silent_left_out() > 0) {
    absl::StrAppend(&text, "and ", reply.silent_left_out(), " more nodes\n");
  }
  return text;
}

}  // namespace

std::string RanksText(const v1::StackGroup& group) {
  std::vector<std::string> runs;
  for (int i = 0; i < group.ranks_size();) {
    int end = i + 1;
    while (end < group.ranks_size() && group.ranks(end) == group.ranks(end - 1) + 1) ++end;
    runs.push_back(end - i == 1 ? absl::StrCat(group.ranks(i))
                                : absl::StrCat(group.ranks(i), "-", group.ranks(end - 1)));
    i = end;
  }
  return absl::StrJoin(runs, ",");
}

std::string StacksText(const v1::GetStacksReply& reply) {
  std::string text =
      absl::StrCat("job ", reply.job(), ", generation ", reply.generation(), ", ",
                   Count(reply.world_size(), "rank"), "; the most recent call comes first\n");
  for (const v1::StackGroup& group : reply.groups()) {
    absl::StrAppend(&text, "\n", GroupText(group, reply.world_size()));
    const std::string& whole = group.first().text();
    if (whole.empty()) continue;
    absl::StrAppend(&text, "\n");
    for (const absl::string_view line : absl::StrSplit(absl::StripSuffix(whole, "\n"), '\n')) {
      absl::StrAppend(&text, TerminalLine(line), "\n");
    }
  }
  if (reply.silent_size() > 0) absl::StrAppend(&text, "\n");
  return absl::StrCat(text, SilentNodesText(reply));
}

std::string PlacesText(const v1::GetStacksReply& reply) {
  std::string text;
  for (const v1::StackGroup& group : reply.groups()) {
    const v1::RankEvidence& evidence = group.first().evidence();
    const bool python = evidence.python() != v1::PYTHON_ACTIVITY_UNSPECIFIED;
    const bool one = group.ranks_size() == 1;
    // The summary begins with the process.
    const std::string who = !python && one ? absl::StrCat("rank ", RanksText(group))
                                           : WhoText(group, reply.world_size());
    const std::string place = python ? PlaceText(group.first())
                                     : absl::StrCat(one ? "" : "the first is ", evidence.summary());
    absl::StrAppend(&text, "  ", who, ": ", EscapeControl(place), "\n");
  }
  return absl::StrCat(text, SilentNodesText(reply));
}

}  // namespace cadre::launcher
