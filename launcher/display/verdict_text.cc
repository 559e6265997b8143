#include "launcher/display/verdict_text.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/log_paths.h"
#include "base/text.h"
#include "launcher/display/timeline_text.h"
#include "nlohmann/json.hpp"
#include "rpc/python_traceback.h"
#include "rpc/worker_end.h"

namespace cadre::launcher {
namespace {

constexpr size_t kShownLines = 20;
constexpr int kShownRanks = 8;
constexpr int kShownEarlier = 8;
constexpr char kFailed[] = "1;31";
constexpr char kSucceeded[] = "1;32";
constexpr char kOwn[] = "1";

// Colours the text with an SGR code.
std::string Painted(bool color, absl::string_view sgr, absl::string_view text) {
  return color ? absl::StrCat("\x1b[", sgr, "m", text, "\x1b[0m") : std::string(text);
}

std::string CauseText(const v1::Failure& failure) {
  if (failure.exit().exec_errno() == EADDRINUSE) return "port taken";
  // If there is no exit, no process was started.
  if (failure.cause() == v1::EXEC_FAILED) {
    return failure.has_exit() ? "could not be started" : "could not begin";
  }
  std::string text = v1::FailureCause_Name(failure.cause());
  absl::AsciiStrToLower(&text);
  return absl::StrReplaceAll(text, {{"_", " "}});
}

std::string WhoFailed(const v1::Failure& failure) {
  const std::string node = EscapeControl(failure.node());
  if (failure.rank() >= 0) return rpc::WorkerName(failure.rank(), failure.local_rank(), node);
  return node.empty() ? "the job" : absl::StrCat("node ", node);
}

void Row(std::string& text, absl::string_view name, absl::string_view value) {
  if (!value.empty()) absl::StrAppendFormat(&text, "  %-10s %s\n", name, EscapeControl(value));
}

// Whether a line of a traceback, or the source line after it, is from the user's own files. `own`
// is kept from line to line.
bool IsOwnLine(absl::string_view line, bool* own) {
  const size_t frame = line.find("  File \"");
  if (frame == line.npos) return std::exchange(*own, false);
  const std::optional<rpc::PythonFrame> found = rpc::ParsePythonFrame(line.substr(frame));
  *own = found.has_value() && !rpc::IsInstalledPython(found->file);
  return *own;
}

// The last lines of `output`, each escaped and indented.
void Quote(std::string& text, absl::string_view title, absl::string_view output, bool color) {
  output = absl::StripTrailingAsciiWhitespace(output);
  while (absl::ConsumePrefix(&output, "\n")) continue;
  if (output.empty()) return;
  std::vector<absl::string_view> lines = absl::StrSplit(output, '\n');
  const size_t from = lines.size() > kShownLines ? lines.size() - kShownLines : 0;
  absl::StrAppend(&text, "  ", title, "\n");
  bool own = false;
  for (size_t i = from; i < lines.size(); ++i) {
    const bool shown = IsOwnLine(lines[i], &own);
    absl::StrAppend(&text, "    | ", Painted(color && shown, kOwn, EscapeControl(lines[i])), "\n");
  }
}

// The places of ranks: the culprit first.
void RankPlaces(std::string& text, const v1::Failure& failure) {
  for (int i = 0; i < failure.evidence_size(); ++i) {
    const v1::RankEvidence& rank = failure.evidence(i);
    if (i == kShownRanks) {
      absl::StrAppend(&text, "    ", failure.evidence_size() - i, " more in verdict.json\n");
      break;
    }
    if (i == 0) absl::StrAppend(&text, "  where ranks were\n");
    absl::StrAppend(&text, "    rank ", rank.rank(), " on ", EscapeControl(rank.node()), ", ",
                    EscapeControl(rank.summary()), "\n");
    if (i == 0) Row(text, "evidence", rank.file());
  }
}

std::string ExitText(const v1::Failure& failure) {
  return EscapeControl(failure.evidence_size() == 0
                           ? rpc::HowItEnded(failure.exit(), failure.cause())
                           : rpc::HowItEnded(failure.exit(), failure.cause(), failure.evidence(0)));
}

// Whether the text about the worker's end already tells where it was, and nothing more is known.
bool PlaceIsInExitText(const v1::Failure& failure) {
  return failure.cause() != v1::HANG && failure.evidence_size() == 1 &&
         !failure.evidence(0).python_where().empty() &&
         failure.evidence(0).phase() == v1::RANK_PHASE_UNSPECIFIED;
}

// Which worker failed first, and how.
std::string RootCauseText(const v1::Failure& root) {
  const std::string who = WhoFailed(root);
  // The message begins with the rank. It also names the program that could not be started, or the
  // ranks that lost a rank which exited with 0 too early.
  const bool exec = root.cause() == v1::EXEC_FAILED;
  const bool early = root.cause() == v1::CRASH && root.has_exit() && root.exit().exit_code() == 0 &&
                     root.exit().signal() == 0;
  if ((exec || early || root.cause() == v1::HANG) && !root.message().empty()) {
    return EscapeControl(root.message());
  }
  if (root.cause() == v1::HANG) return absl::StrCat(who, " made no progress");
  return root.has_exit() ? absl::StrCat(who, " ", ExitText(root)) : who;
}

}  // namespace

std::string ErrorFileText(const std::string& error_json) {
  const nlohmann::json root = nlohmann::json::parse(error_json, nullptr, false);
  if (!root.is_object() || !root.contains("message")) return "";
  const nlohmann::json& message = root["message"];
  if (message.is_string()) return message.get<std::string>();
  if (!message.is_object()) return "";
  if (message.contains("extraInfo") && message["extraInfo"].is_object()) {
    const nlohmann::json& extra = message["extraInfo"];
    if (extra.contains("py_callstack") && extra["py_callstack"].is_string()) {
      return extra["py_callstack"].get<std::string>();
    }
  }
  const auto inner = message.find("message");
  return inner != message.end() && inner->is_string() ? inner->get<std::string>() : "";
}

std::string OutcomeText(const v1::Verdict& verdict) {
  const std::string message = EscapeControl(verdict.message());
  const char* const outcome = verdict.outcome() == v1::SUCCEEDED         ? "succeeded"
                              : verdict.outcome() == v1::CANCELLED_PHASE ? "was cancelled"
                                                                         : "failed";
  return message.empty() ? outcome : absl::StrCat(outcome, ": ", message);
}

std::string Headline(const v1::Verdict& verdict, const std::string& line) {
  return Painted(true, verdict.outcome() == v1::SUCCEEDED ? kSucceeded : kFailed, line);
}

std::string VerdictText(const v1::Verdict& verdict, const VerdictStyle& style) {
  const std::string line =
      absl::StrCat("cadre: job ", EscapeControl(verdict.job()), " ", OutcomeText(verdict));
  return absl::StrCat(style.color ? Headline(verdict, line) : line, "\n",
                      VerdictDetails(verdict, style));
}

namespace {

// Removes and returns the evidence of how the nodes differ. It comes last and has no rank. Empty:
// there is none.
std::string TakeWhatDiffers(v1::Failure* failure) {
  const int last = failure->evidence_size() - 1;
  if (last < 0 || failure->evidence(last).rank() >= 0) return "";
  const std::string differ = failure->evidence(last).summary();
  failure->mutable_evidence()->RemoveLast();
  return differ;
}

// The facts about the failure that ended the job.
void RootCause(std::string& text, const v1::Verdict& verdict, const VerdictStyle& style) {
  v1::Failure root = verdict.root_cause();
  const std::string differ = TakeWhatDiffers(&root);
  const bool exited = root.has_exit();
  const bool named = !root.message().empty() && absl::StartsWith(verdict.message(), root.message());
  if (!named) {
    absl::StrAppend(&text, "Root cause (first observed failure): ", RootCauseText(root), "\n");
  }
  if (root.unix_ms() > 0) {
    Row(text, "time",
        absl::FormatTime("%Y-%m-%d_%H:%M:%E3S", absl::FromUnixMillis(root.unix_ms()), style.zone));
  }
  Row(text, "host", root.node());
  Row(text, "cause",
      absl::StrCat(CauseText(root),
                   root.generation() == 0 ? "" : absl::StrCat(", generation ", root.generation())));
  if (exited && root.exit().pid() > 0) Row(text, "pid", absl::StrCat(root.exit().pid()));
  if (exited && root.rank() >= 0 && root.exit().exec_errno() == 0 && !style.log_dir.empty()) {
    Row(text, "logs",
        absl::StrCat(style.log_dir, "/", RunSubdirectory(verdict.job(), verdict.run()), "/",
                     RankSubdirectory(root.generation(), root.rank()), "/"));
  }
  if (!PlaceIsInExitText(root)) RankPlaces(text, root);
  Row(text, "difference", differ);
  const std::string traceback = ErrorFileText(root.exit().error_json());
  if (!traceback.empty()) {
    Quote(text, "error", traceback, style.color);
  } else {
    Quote(text, "last lines", root.exit().last_lines(), style.color);
  }
}

}  // namespace

std::string VerdictDetails(const v1::Verdict& verdict, const VerdictStyle& style) {
  std::string text;
  // A cancelled job has no failure to explain.
  if (verdict.has_root_cause() && verdict.outcome() != v1::CANCELLED_PHASE) {
    RootCause(text, verdict, style);
  }
  if (verdict.collateral_size() > 0) {
    absl::StrAppend(&text, "Failures that followed from it:\n");
    for (const v1::Failure& failure : verdict.collateral()) {
      absl::StrAppend(&text, "  ", WhoFailed(failure),
                      failure.has_exit() ? absl::StrCat(" ", ExitText(failure))
                                         : absl::StrCat(": ", CauseText(failure)),
                      "\n");
    }
  }
  for (int i = 0; i < std::min(verdict.earlier_size(), kShownEarlier); ++i) {
    absl::StrAppend(&text, i == 0 ? "Earlier failures:\n" : "", "  ",
                    EscapeControl(verdict.earlier(i).message()), "\n");
  }
  if (verdict.earlier_size() > kShownEarlier) {
    absl::StrAppend(&text, "  ", verdict.earlier_size() - kShownEarlier, " more in verdict.json\n");
  }
  if (verdict.restarts() > 0) {
    absl::StrAppend(&text, "After ", Count(verdict.restarts(), "restart"), ", ",
                    Count(verdict.generations(), "generation"), ".\n");
  }
  return text;
}

std::string SuccessText(const v1::Verdict& verdict, const v1::Timeline& timeline, bool color) {
  int64_t end = 0;
  int64_t running = 0;
  for (const v1::GenerationTimeline& g : timeline.generations()) {
    end = std::max(end, EndOf(timeline, g));
    if (g.running_us() > 0) running += EndOf(timeline, g) - g.running_us();
  }
  std::string text = absl::StrCat("cadre: job ", EscapeControl(verdict.job()), " succeeded");
  if (end > 0) {
    absl::StrAppend(&text, " in ", TookText(0, end), ", of which workers ran ",
                    TookText(0, std::max<int64_t>(running, 1)));
  }
  if (timeline.progress_size() > 0) {
    const v1::ProgressSample& last = timeline.progress(timeline.progress_size() - 1);
    absl::StrAppend(&text, "; step ", last.step());
    if (last.loss() != 0) absl::StrAppendFormat(&text, ", loss %.4f", last.loss());
  }
  if (verdict.restarts() > 0) {
    absl::StrAppend(&text, "; ", Count(verdict.restarts(), "restart"));
  }
  return Painted(color, kSucceeded, text) + "\n";
}

}  // namespace cadre::launcher
