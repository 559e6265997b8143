#include "rendezvous/job/failure.h"

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/duration.h"
#include "base/text.h"
#include "rendezvous/state/policy.h"
#include "rpc/message_limits.h"
#include "rpc/worker_end.h"

namespace cadre::job {
namespace {

constexpr size_t kMaxErrorJsonBytes = 64 << 10;
constexpr size_t kMaxEvidenceBytes = 512;
constexpr size_t kMaxPathBytes = 1024;
// The length of a name from PyTorch's flight recorder.
constexpr size_t kMaxCallBytes = 128;
// Whether a worker was not started because another process listens at the port where the ranks were
// to meet. Programs do not end with this errno; only the agent sets it.
bool IsTakenPort(const v1::WorkerExit& exit) { return exit.exec_errno() == EADDRINUSE; }

// The text about a port that is taken. `exit` says which port it is and, if the agent knows it,
// which process listens there.
std::string TakenPortText(const v1::WorkerExit& exit, const std::string& node) {
  const std::string taken =
      exit.ended_with().empty() ? absl::StrCat(exit.exec_step(), " is taken") : exit.ended_with();
  return absl::StrCat(OneLine(taken, kMaxEvidenceBytes), " on ", node,
                      ", so no worker was started there; give another --master-port, or none to "
                      "have a free one");
}

std::string ExecText(const state::Job& job, const v1::WorkerExit& exit) {
  const std::string error = ErrnoText(exit.exec_errno());
  if (exit.exec_step() == "chdir") {
    return absl::StrCat("cannot enter working directory ",
                        OneLine(job.saved.spec().working_dir(), 256), ": ", error);
  }
  const std::string program = job.saved.spec().command().empty()
                                  ? "the program"
                                  : OneLine(job.saved.spec().command(0), 256);
  if (exit.exec_step().empty() || exit.exec_step() == "exec") {
    return absl::StrCat("cannot start ", program, ": ", error);
  }
  return absl::StrCat("cannot start ", program, ": ", exit.exec_step(), ": ", error);
}

// Keeps no more calls than an agent sends, and nothing that must not reach a terminal.
void CleanCalls(v1::RankEvidence* rank) {
  if (rank->calls_size() > rpc::kProcessGroupsMax) rank->clear_calls();
  for (v1::ProcessGroupCalls& group : *rank->mutable_calls()) {
    if (group.calls_size() > rpc::kGroupCallsMax) group.clear_calls();
    group.set_group(OneLine(group.group(), kMaxCallBytes));
    group.set_description(OneLine(group.description(), kMaxCallBytes));
    if (group.messages_size() > rpc::kGroupCallsMax) group.clear_messages();
    for (v1::CollectiveCall& message : *group.mutable_messages()) message.clear_shape();
    if (group.ranks_size() > rpc::kGroupRanksMax) group.clear_ranks();
    for (v1::CollectiveCall& call : *group.mutable_calls()) {
      call.set_name(OneLine(call.name(), kMaxCallBytes));
      call.set_shape(OneLine(call.shape(), kMaxCallBytes));
    }
  }
}

std::string HowItEnded(const state::Job& job, const v1::Failure& failure) {
  const v1::WorkerExit& exit = failure.exit();
  if (failure.cause() == v1::EXEC_FAILED) return ExecText(job, exit);
  if (failure.cause() == v1::HANG) {
    const absl::Duration progress = FromProto(job.saved.spec().timeouts().progress());
    return progress > absl::ZeroDuration()
               ? absl::StrCat("made no progress for ", ShortDuration(progress))
               : "made no progress";
  }
  return failure.evidence_size() == 0 ? rpc::HowItEnded(exit, failure.cause())
                                      : rpc::HowItEnded(exit, failure.cause(), failure.evidence(0));
}

}  // namespace

v1::Failure WorkerFailure(const state::Job& job, const saved::Member& member,
                          const v1::WorkerExited& exited) {
  const uint32_t local_rank = exited.local_rank();
  const v1::WorkerExit& exit = exited.exit();
  const v1::FailureCause cause = exited.cause();
  v1::Failure failure;
  const bool reported = cause != v1::FAILURE_CAUSE_UNSPECIFIED && v1::FailureCause_IsValid(cause);
  failure.set_cause(reported                 ? cause
                    : exit.exec_errno() != 0 ? v1::EXEC_FAILED
                    : exit.out_of_memory()   ? v1::OUT_OF_MEMORY
                                             : v1::CRASH);
  failure.set_rank(member.first_rank() + local_rank);
  failure.set_local_rank(local_rank);
  failure.set_node(member.node());
  failure.set_generation(job.generation.number());
  *failure.mutable_exit() = exit;
  failure.mutable_exit()->set_exec_step(OneLine(exit.exec_step(), 64));
  failure.mutable_exit()->set_last_lines(Shortened(exit.last_lines(), kMaxLastLinesBytes));
  failure.mutable_exit()->set_ended_with(OneLine(exit.ended_with(), kMaxEvidenceBytes));
  // A truncated error file is not valid JSON.
  if (exit.error_json().size() > kMaxErrorJsonBytes) failure.mutable_exit()->clear_error_json();
  if (exited.has_evidence()) {
    *failure.add_evidence() = CleanEvidence(exited.evidence(), member);
    failure.mutable_evidence(0)->set_local_rank(local_rank);
    failure.mutable_evidence(0)->set_rank(failure.rank());
  }
  const std::string worker = rpc::WorkerName(failure.rank(), local_rank, member.node());
  const std::string how = HowItEnded(job, failure);
  failure.set_message(
      Shortened(IsTakenPort(exit) ? TakenPortText(exit, member.node())
                : failure.cause() == v1::EXEC_FAILED
                    ? absl::StrCat(worker, ": ", how)
                    : absl::StrCat(worker, " ", how, " in generation ", job.generation.number()),
                state::kMaxMessageBytes));
  return failure;
}

v1::RankEvidence CleanEvidence(const v1::RankEvidence& reported, const saved::Member& member) {
  v1::RankEvidence rank = reported;
  rank.set_rank(member.first_rank() + reported.local_rank());
  rank.set_node(member.node());
  rank.set_summary(OneLine(reported.summary(), kMaxEvidenceBytes));
  rank.set_state(OneLine(reported.state(), 4));
  rank.set_wchan(OneLine(reported.wchan(), 64));
  if (!v1::PythonActivity_IsValid(reported.python())) rank.clear_python();
  rank.set_python_what(OneLine(reported.python_what(), kMaxEvidenceBytes));
  rank.set_python_where(OneLine(reported.python_where(), kMaxEvidenceBytes));
  rank.set_file(OneLine(reported.file(), kMaxPathBytes));
  if (reported.last_lines().size() > kMaxLastLinesBytes) rank.clear_last_lines();
  CleanCalls(&rank);
  return rank;
}

v1::Failure PlainFailure(v1::FailureCause cause, absl::string_view node, uint64_t generation,
                         absl::string_view message) {
  v1::Failure failure;
  failure.set_cause(cause);
  failure.set_rank(-1);
  failure.set_local_rank(-1);
  failure.set_node(std::string(node));
  failure.set_generation(generation);
  failure.set_message(OneLine(message, state::kMaxMessageBytes));
  return failure;
}

}  // namespace cadre::job
