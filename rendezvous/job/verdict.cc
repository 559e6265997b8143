#include "rendezvous/job/verdict.h"

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/job/orders.h"
#include "rendezvous/job/progress_and_usage.h"
#include "rendezvous/state/policy.h"
#include "rendezvous/state/state_limits.h"
#include "rendezvous/step/effects.h"
#include "rpc/job_progress.h"

namespace cadre::job {
namespace {

// Adds how the nodes differ. Only a person can tell whether that caused the failure.
void AddNodeDifferences(const state::Job& job, v1::Failure* failure) {
  const std::string differ = DescribeNodeDifferences(job);
  if (differ.empty()) return;
  if (failure->evidence_size() >= state::kMaxEvidence) failure->mutable_evidence()->RemoveLast();
  v1::RankEvidence* const evidence = failure->add_evidence();
  evidence->set_rank(-1);
  evidence->set_local_rank(-1);
  evidence->set_summary(OneLine(differ, state::kMaxMessageBytes));
}

}  // namespace

v1::Verdict MakeVerdict(const std::string& name, const state::Job& job, v1::JobPhase outcome,
                        int exit_status, absl::string_view message,
                        const std::optional<v1::Failure>& root_cause) {
  v1::Verdict verdict;
  verdict.set_job(name);
  verdict.set_outcome(outcome);
  verdict.set_message(Shortened(message, state::kMaxMessageBytes));
  verdict.set_exit_status(exit_status);
  if (root_cause.has_value()) *verdict.mutable_root_cause() = *root_cause;
  if (outcome == v1::FAILED && root_cause.has_value() && job.phase() != v1::GATHERING) {
    AddNodeDifferences(job, verdict.mutable_root_cause());
  }
  // A job that ends while it gathers has its last generation among the earlier ones.
  if (job.phase() != v1::GATHERING && root_cause.has_value()) {
    *verdict.mutable_collateral() = job.generation.saved.stop().collateral();
  }
  *verdict.mutable_earlier() = job.saved.earlier();
  verdict.set_restarts(job.saved.restarts().counted());
  verdict.set_generations(job.saved.generations());
  verdict.set_run(job.saved.run());
  return verdict;
}

std::string EndText(const v1::Verdict& verdict) {
  return absl::StrCat("ended (", rpc::PhaseName(verdict.outcome()), ")",
                      verdict.message().empty() ? "" : ": ", verdict.message());
}

v1::ServerMessage FinishedMessage(const std::string& name, const JobView& view) {
  v1::ServerMessage message = step::MessageFor(name, view.job.generation.number());
  *message.mutable_finished()->mutable_verdict() = view.job.saved.verdict();
  *message.mutable_finished()->mutable_timeline() =
      MakeTimeline(name, view.job, view.volatile_state.progress);
  return message;
}

}  // namespace cadre::job
