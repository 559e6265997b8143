#include "launcher/display/verdict_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/log_paths.h"
#include "base/text.h"
#include "launcher/display/timeline_text.h"
#include "nlohmann/json.hpp"
#include "rpc/worker_end.h"

namespace cadre::launcher {
namespace {

constexpr size_t kShownLines = 20;
constexpr int kShownRanks = 8;
constexpr int kShownEarlier = 8;

std::string CauseText(const v1::Failure& failure) {
  // Nothing of it was executed.
  if (failure.cause() == v1::EXEC_FAILED && !failure.has_exit()) return "could not begin";
  std::string text = v1::FailureCause_Name(failure.cause());
  absl::AsciiStrToLower(&text);
  return absl::StrReplaceAll(text, {{"_", " "}});
}

std::string Who(const v1::Failure& failure) {
  const std::string node = EscapeControl(failure.node());
  if (failure.rank() >= 0) return rpc::WorkerName(failure.rank(), failure.local_rank(), node);
  return node.empty() ? "the job" : absl::StrCat("node ", node);
}

void Row(std::string& text, absl::string_view name, absl::string_view value) {
  if (!value.empty()) absl::StrAppendFormat(&text, "  %-10s %s\n", name, EscapeControl(value));
}

// The last lines of `output`, each escaped and indented.
void Quote(std::string& text, absl::string_view title, absl::string_view output) {
  output = absl::StripAsciiWhitespace(output);
  if (output.empty()) return;
  std::vector<absl::string_view> lines = absl::StrSplit(output, '\n');
  const size_t from = lines.size() > kShownLines ? lines.size() - kShownLines : 0;
  absl::StrAppend(&text, "  ", title, "\n");
  for (size_t i = from; i < lines.size(); ++i) {
    absl::StrAppend(&text, "    | ", EscapeControl(lines[i]), "\n");
  }
}

// Where ranks were: the culprit first.
void Ranks(std::string& text, const v1::Failure& failure) {
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
  return EscapeControl(rpc::HowItEnded(failure.exit(), failure.cause()));
}

// Who failed first, and how.
std::string RootCauseText(const v1::Failure& root) {
  const std::string who = Who(root);
  // The message begins with the rank. It also names the program that could not be started, or the
  // ranks that lost one which ended with 0 too early.
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

std::string VerdictText(const v1::Verdict& verdict, const std::string& log_dir,
                        absl::TimeZone zone) {
  return absl::StrCat("cadre: job ", EscapeControl(verdict.job()), " ", OutcomeText(verdict), "\n",
                      VerdictDetails(verdict, log_dir, zone));
}

std::string VerdictDetails(const v1::Verdict& verdict, const std::string& log_dir,
                           absl::TimeZone zone) {
  std::string text;
  // A cancelled job has no failure to explain.
  if (verdict.has_root_cause() && verdict.outcome() != v1::CANCELLED_PHASE) {
    const v1::Failure& root = verdict.root_cause();
    const bool exited = root.has_exit();
    absl::StrAppend(&text, "Root cause (first observed failure): ", RootCauseText(root), "\n");
    if (root.unix_ms() > 0) {
      Row(text, "time",
          absl::FormatTime("%Y-%m-%d_%H:%M:%E3S", absl::FromUnixMillis(root.unix_ms()), zone));
    }
    Row(text, "host", root.node());
    Row(text, "cause",
        absl::StrCat(CauseText(root), root.generation() == 0
                                          ? ""
                                          : absl::StrCat(", generation ", root.generation())));
    if (exited && root.exit().pid() > 0) Row(text, "pid", absl::StrCat(root.exit().pid()));
    if (exited && root.rank() >= 0 && root.exit().exec_errno() == 0 && !log_dir.empty()) {
      Row(text, "logs",
          absl::StrCat(log_dir, "/", RunSubdirectory(verdict.job(), verdict.run()), "/",
                       RankSubdirectory(root.generation(), root.rank()), "/"));
    }
    Ranks(text, root);
    const std::string traceback = ErrorFileText(root.exit().error_json());
    if (!traceback.empty()) {
      Quote(text, "error", traceback);
    } else {
      Quote(text, "last lines", root.exit().last_lines());
    }
  }
  if (verdict.collateral_size() > 0) {
    absl::StrAppend(&text, "What followed from it:\n");
    for (const v1::Failure& failure : verdict.collateral()) {
      absl::StrAppend(&text, "  ", Who(failure),
                      failure.has_exit() ? absl::StrCat(" ", ExitText(failure))
                                         : absl::StrCat(": ", CauseText(failure)),
                      "\n");
    }
  }
  for (int i = 0; i < std::min(verdict.earlier_size(), kShownEarlier); ++i) {
    absl::StrAppend(&text, i == 0 ? "What had failed before:\n" : "", "  ",
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

std::string SuccessText(const v1::Verdict& verdict, const v1::Timeline& timeline) {
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
  if (verdict.restarts() > 0) {
    absl::StrAppend(&text, "; ", Count(verdict.restarts(), "restart"));
  }
  return text + "\n";
}

}  // namespace cadre::launcher
