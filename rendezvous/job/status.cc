#include "rendezvous/job/status.h"

#include "absl/strings/str_cat.h"
#include "rendezvous/job/progress_log.h"

namespace cadre::job {

v1::JobStatus StatusOf(const std::string& name, const View& view, const std::string& cluster_waits,
                       MonoTime at, Shown shown) {
  v1::JobStatus status =
      MakeStatus(name, view.job, view.live.progress,
                 WaitingFor(view, cluster_waits, view.context.clock.FromHost(at)), shown);
  if (WantsCheckpoint(view)) status.set_checkpoint_wanted(true);
  return status;
}

std::string Explain(const View& view, const std::string& cluster_waits, MonoTime at) {
  if (view.job.saved.has_verdict()) {
    return absl::StrCat("ended (", v1::JobPhase_Name(view.job.phase()),
                        "): ", view.job.saved.verdict().message());
  }
  return ExplainText(view.job, WaitingFor(view, cluster_waits, view.context.clock.FromHost(at)));
}

v1::ServerMessage FinishedMessage(const std::string& name, const View& view) {
  v1::ServerMessage message = step::MessageFor(name, view.job.generation.number());
  *message.mutable_finished()->mutable_verdict() = view.job.saved.verdict();
  *message.mutable_finished()->mutable_timeline() =
      MakeTimeline(name, view.job, view.live.progress);
  return message;
}

}  // namespace cadre::job
