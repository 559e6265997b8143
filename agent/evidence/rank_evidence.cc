#include "agent/evidence/rank_evidence.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/text.h"
#include "base/utf8.h"

namespace cadre::agent {
namespace {

// Collectives that PageText tells about.
constexpr size_t kShownCollectives = 8;
// Of a line of a user's program.
constexpr size_t kMaxLineBytes = 120;

const char* StateName(const std::string& state) {
  if (state == "R") return "running";
  if (state == "S") return "sleeping";
  if (state == "D") return "in uninterruptible sleep";
  if (state == "T") return "stopped";
  if (state == "t") return "stopped by a debugger";
  if (state == "Z") return "dead";
  return state.empty() ? "gone" : "in another state";
}

v1::RankPhase PhaseOf(WorkerPhase phase) {
  switch (phase) {
    case WorkerPhase::kStarting:
      return v1::STARTING;
    case WorkerPhase::kForward:
      return v1::FORWARD;
    case WorkerPhase::kBackward:
      return v1::BACKWARD;
    case WorkerPhase::kWaiting:
      return v1::WAITING;
    case WorkerPhase::kBetween:
      return v1::BETWEEN;
    case WorkerPhase::kFailed:
      return v1::RUNTIME_FAILED;
  }
  return v1::RANK_PHASE_UNSPECIFIED;
}

WorkerPhase PhaseOf(v1::RankPhase phase) {
  switch (phase) {
    case v1::FORWARD:
      return WorkerPhase::kForward;
    case v1::BACKWARD:
      return WorkerPhase::kBackward;
    case v1::WAITING:
      return WorkerPhase::kWaiting;
    case v1::BETWEEN:
      return WorkerPhase::kBetween;
    case v1::RUNTIME_FAILED:
      return WorkerPhase::kFailed;
    default:
      return WorkerPhase::kStarting;
  }
}

const char* StateName(CollectiveRecord::State state) {
  switch (state) {
    case CollectiveRecord::State::kRunning:
      return "under way";
    case CollectiveRecord::State::kDone:
      return "done";
    case CollectiveRecord::State::kFailed:
      return "failed";
  }
  return "in an unknown state";
}

// "; Python: waits in all_reduce, train.py:12 in step"; empty without a stack.
std::string PythonText(const v1::RankEvidence& evidence) {
  if (evidence.python() == v1::PYTHON_ACTIVITY_UNSPECIFIED) return "";
  const char* const does = evidence.python() == v1::IN_COLLECTIVE    ? "waits in "
                           : evidence.python() == v1::IN_DATA_LOADER ? "loads data: "
                           : evidence.python() == v1::IMPORTING      ? "imports modules: "
                                                                     : "is at ";
  return absl::StrCat("; Python: ", does, evidence.python_what(),
                      evidence.python_where().empty() ? "" : ", ", evidence.python_where());
}

double Seconds(MonoTime since, MonoTime now) {
  return std::max(0.0, absl::ToDoubleSeconds(now - since));
}

}  // namespace

void AddProcesses(const ProcessLook& look, v1::RankEvidence* evidence) {
  evidence->set_state(look.state == '\0' ? std::string() : std::string(1, look.state));
  evidence->set_cpu(look.cores);
  evidence->set_wchan(look.wchan);
}

void AddPython(const PythonPlace& place, v1::RankEvidence* evidence) {
  evidence->set_python(place.activity);
  // Names come from the program and may be in any encoding.
  evidence->set_python_what(OneLine(ReplaceInvalidUtf8(place.what), kMaxLineBytes));
  evidence->set_python_where(OneLine(ReplaceInvalidUtf8(place.where), kMaxLineBytes));
}

void AddPage(const ProgressSnapshot& page, MonoTime now, v1::RankEvidence* evidence) {
  evidence->set_phase(PhaseOf(page.phase));
  evidence->set_phase_seconds(Seconds(page.since, now));
  evidence->set_step(static_cast<uint64_t>(std::max<int64_t>(page.step, 0)));
  evidence->set_bucket(page.bucket);
  if (page.collectives.empty()) return;
  const CollectiveRecord& last = page.collectives.back();
  evidence->set_collective(last.sequence);
  evidence->set_collective_running(last.state == CollectiveRecord::State::kRunning);
}

std::string EvidenceSummary(const v1::RankEvidence& evidence) {
  std::string text = absl::StrCat("pid ", evidence.pid(), ": ", StateName(evidence.state()));
  if (!evidence.state().empty()) {
    absl::StrAppend(&text, " (state ", evidence.state(), ")",
                    evidence.wchan().empty() ? "" : " in ", evidence.wchan());
    absl::StrAppendFormat(&text, ", %.1f cores", evidence.cpu());
  }
  absl::StrAppend(&text, PythonText(evidence));
  if (evidence.phase() == v1::RANK_PHASE_UNSPECIFIED) return text;
  absl::StrAppendFormat(&text, "; step %d, %s since %.1f s", evidence.step(),
                        PhaseText(PhaseOf(evidence.phase()), evidence.bucket()),
                        evidence.phase_seconds());
  if (evidence.collective() == 0) return text;
  absl::StrAppend(&text, ", last all-reduce ", evidence.collective(),
                  evidence.collective_running() ? " under way" : " over");
  return text;
}

std::string PageText(const ProgressSnapshot& page, MonoTime now) {
  std::string text = absl::StrCat(Describe(page, now), "\n");
  const size_t from =
      page.collectives.size() - std::min(page.collectives.size(), kShownCollectives);
  for (size_t i = from; i < page.collectives.size(); ++i) {
    const CollectiveRecord& one = page.collectives[i];
    absl::StrAppendFormat(
        &text, "  all-reduce %d: step %d, bucket %d, %d elements, begun %.1f s ago, %s\n",
        one.sequence, one.step, one.bucket, one.count, Seconds(one.begin, now),
        StateName(one.state));
  }
  return text;
}

std::string CallsText(const v1::RankEvidence& evidence) {
  std::string text;
  for (const v1::ProcessGroupCalls& group : evidence.calls()) {
    absl::StrAppend(&text, "== calls in process group ", group.description(),
                    ", by PyTorch's flight recorder; the last is ", group.last(), "\n");
    for (const v1::CollectiveCall& call : group.calls()) {
      absl::StrAppend(&text, "  ", call.name(), " ", call.number(), ": ", call.shape(),
                      call.pending() ? ", has not ended\n" : ", has ended\n");
    }
    for (const v1::CollectiveCall& message : group.messages()) {
      absl::StrAppend(&text, "  ", message.name(), " from rank ",
                      message.from() < 0 ? "any" : absl::StrCat(message.from()), " to rank ",
                      message.to(), ", has not ended\n");
    }
  }
  return text;
}

}  // namespace cadre::agent
