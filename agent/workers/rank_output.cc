#include "agent/workers/rank_output.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"

namespace cadre::agent {

std::string LinePrefix(absl::string_view prefix_template, const PrefixFields& fields) {
  if (prefix_template.empty()) prefix_template = "[${host}:${rank}] ";
  return absl::StrReplaceAll(prefix_template, {{"${host}", fields.host},
                                               {"${hostname}", fields.host},
                                               {"${role_name}", fields.role},
                                               {"${rank}", absl::StrCat(fields.rank)},
                                               {"${local_rank}", absl::StrCat(fields.local_rank)}});
}

void LineAssembler::EndLine(std::string& out, absl::string_view end) {
  absl::StrAppend(&out, prefix_, line_, end);
  line_.clear();
  overwritten_ = false;
}

void LineAssembler::AfterReturn(char next, std::string& out) {
  after_return_ = false;
  if (returns_ == Returns::kOverwrites && next != '\n') {
    line_.clear();
    overwritten_ = true;
  } else if (returns_ == Returns::kKept && next == '\n' && line_.empty()) {
    out += '\n';  // what was before is out, with the carriage return
  } else if (next == '\n') {
    EndLine(out, "\n");
  } else if (!line_.empty()) {
    EndLine(out, "\r");
  }
}

std::string LineAssembler::Add(absl::string_view bytes, uint32_t dropped) {
  std::string out;
  if (dropped != 0) {
    if (!line_.empty()) EndLine(out, absl::StrCat(kSplitMarker, "\n"));
    absl::StrAppend(&out, prefix_, "[", dropped, " bytes left out here; the log file has them]\n");
    after_return_ = false;
  }
  while (!bytes.empty()) {
    if (after_return_) {
      const bool ended = bytes.front() == '\n';
      AfterReturn(bytes.front(), out);
      if (ended) bytes.remove_prefix(1);
      continue;
    }
    const size_t end = bytes.find_first_of("\r\n");
    CADRE_CHECK(line_.size() <= kMaxOutputLine, "a line of ", line_.size(), " bytes");
    const size_t room = kMaxOutputLine - line_.size();
    const size_t take = std::min({end, bytes.size(), room});
    absl::StrAppend(&line_, bytes.substr(0, take));
    bytes.remove_prefix(take);
    if (bytes.empty()) break;
    if (take != end) {  // the line is full and goes on
      EndLine(out, absl::StrCat(kSplitMarker, "\n"));
      continue;
    }
    after_return_ = bytes.front() == '\r';
    bytes.remove_prefix(1);
    if (!after_return_) EndLine(out, "\n");
  }
  // Whoever reads a pipe sees the state of a progress bar when it is written.
  if (after_return_ && returns_ == Returns::kKept && !line_.empty()) EndLine(out, "\r");
  return out;
}

std::string LineAssembler::Finish() {
  std::string out;
  if (!line_.empty()) EndLine(out, "\n");
  after_return_ = overwritten_ = false;
  return out;
}

}  // namespace cadre::agent
