#include "launcher/attach/launch_link.h"

#include <unistd.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "proto/job.pb.h"
#include "rpc/job_phase.h"

namespace cadre::launcher {
namespace {

v1::ServerMessage Finished(const v1::Verdict& verdict) {
  v1::ServerMessage message;
  message.set_job(verdict.job());
  *message.mutable_finished()->mutable_verdict() = verdict;
  return message;
}

class LaunchLink final : public agent::ServerLink {
 public:
  LaunchLink(std::unique_ptr<agent::ServerLink> link, LaunchBoard board, LaunchLinkOptions options)
      : link_(std::move(link)),
        board_(std::move(board)),
        options_(std::move(options)),
        hears_end_(!board_.HasTakenPart(options_.node)) {}

  void Start(agent::LinkCallbacks callbacks) override {
    agent::LinkCallbacks with_end = callbacks;
    with_end.on_up = [this, up = callbacks.on_up](uint64_t stream) {
      was_up_ = true;
      up(stream);
    };
    with_end.on_down = [this, callbacks](absl::Status status) {
      const absl::StatusOr<v1::Verdict> end = End();
      // Nobody waits for a server that is known to be over.
      if (!end.ok() || was_up_) callbacks.on_down(std::move(status));
      if (end.ok()) callbacks.on_message(Finished(*end));
    };
    link_->Start(std::move(with_end));
  }
  void Send(uint64_t stream, v1::NodeMessage message) override {
    link_->Send(stream, std::move(message));
  }
  void Stop() override { link_->Stop(); }

 private:
  // How the launch ended, or that it cannot begin; NOT_FOUND: the server may yet come.
  absl::StatusOr<v1::Verdict> End() {
    absl::StatusOr<v1::Verdict> end = absl::NotFoundError("this launch goes on");
    if (hears_end_) end = board_.End();
    if (end.ok()) SayOnce(*end);
    if (end.ok() || was_up_ || !options_.launch_serves) return end;
    const absl::Status failed = board_.Failure(options_.node);
    if (failed.ok()) return end;
    v1::Verdict verdict;
    verdict.set_job(options_.job);
    verdict.set_outcome(v1::FAILED);
    verdict.set_exit_status(kExitUnavailable);
    verdict.set_message(std::string(failed.message()));
    return verdict;
  }

  void SayOnce(const v1::Verdict& verdict) {
    if (!said_) {
      options_.say(absl::StrCat("job ", verdict.job(), " had ended before this node ",
                                was_up_ ? "was back" : "came", " (",
                                rpc::PhaseName(verdict.outcome()), ")"));
    }
    said_ = true;
    // Made again by this launcher, in the belief that it might be the first one.
    unlink(board_.TokenFile().c_str());
  }

  const std::unique_ptr<agent::ServerLink> link_;
  const LaunchBoard board_;
  const LaunchLinkOptions options_;
  const bool hears_end_;
  // Of the link's thread.
  bool was_up_ = false;
  bool said_ = false;
};

}  // namespace

std::unique_ptr<agent::ServerLink> MakeLaunchLink(std::unique_ptr<agent::ServerLink> link,
                                                  LaunchBoard board, LaunchLinkOptions options) {
  return std::make_unique<LaunchLink>(std::move(link), std::move(board), std::move(options));
}

}  // namespace cadre::launcher
