#include "launcher/attach/launcher_links.h"

#include <unistd.h>

#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "proto/job.pb.h"
#include "rpc/job_progress.h"

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
        reports_end_(!board_.HasTakenPart(options_.node)) {}

  void Start(agent::LinkCallbacks callbacks) override {
    agent::LinkCallbacks with_end = callbacks;
    with_end.on_up = [this, up = callbacks.on_up](uint64_t stream) {
      was_up_ = true;
      up(stream);
    };
    with_end.on_down = [this, callbacks](absl::Status status) {
      const absl::StatusOr<v1::Verdict> end = EndOfLaunch();
      // Once the launch is known to have ended, it makes no sense to report that the server is
      // unreachable.
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
  // Returns how the launch ended, or a verdict that it cannot begin; NOT_FOUND: the server may
  // still come.
  absl::StatusOr<v1::Verdict> EndOfLaunch() {
    absl::StatusOr<v1::Verdict> end = absl::NotFoundError("this launch goes on");
    if (reports_end_) end = board_.ReadEnd();
    if (end.ok()) ReportEndOnce(*end);
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

  void ReportEndOnce(const v1::Verdict& verdict) {
    if (!reported_) {
      options_.say(absl::StrCat("job ", verdict.job(), " ended before this node ",
                                was_up_ ? "came back" : "joined", " (",
                                rpc::PhaseName(verdict.outcome()), ")"));
    }
    reported_ = true;
    // This launcher has created the file again, because it could have been the first of a launch.
    unlink(board_.TokenFile().c_str());
  }

  const std::unique_ptr<agent::ServerLink> link_;
  const LaunchBoard board_;
  const LaunchLinkOptions options_;
  const bool reports_end_;
  // Used by the link's thread only.
  bool was_up_ = false;
  bool reported_ = false;
};

}  // namespace

std::unique_ptr<agent::ServerLink> MakeLaunchLink(std::unique_ptr<agent::ServerLink> link,
                                                  LaunchBoard board, LaunchLinkOptions options) {
  return std::make_unique<LaunchLink>(std::move(link), std::move(board), std::move(options));
}

namespace {

constexpr uint64_t kOnlyStream = 1;

// Outlives the link, in case the core thread is inside Send when the link is stopped.
class CallbackSink : public host::NodeSink {
 public:
  explicit CallbackSink(agent::LinkCallbacks callbacks) : callbacks_(std::move(callbacks)) {}

  void Up() {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (!disabled_) callbacks_.on_up(kOnlyStream);
  }
  void Send(v1::ServerMessage message) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (!disabled_) callbacks_.on_message(std::move(message));
  }
  void Close(const absl::Status& status) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (!disabled_) {
      callbacks_.on_down(status.ok() ? absl::UnavailableError("the server closed the stream")
                                     : status);
    }
    disabled_ = true;
  }
  // No callback runs after this returns.
  void Disable() {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    disabled_ = true;
  }

 private:
  // Recursive, because a callback may post a message to a full server, which closes this sink.
  std::recursive_mutex mutex_;
  bool disabled_ = false;
  agent::LinkCallbacks callbacks_;
};

class EmbeddedLink : public agent::ServerLink {
 public:
  explicit EmbeddedLink(host::CoreThread& core) : core_(core) {}
  ~EmbeddedLink() override { Stop(); }

  void Start(agent::LinkCallbacks callbacks) override {
    sink_ = std::make_shared<CallbackSink>(std::move(callbacks));
    stream_ = core_.OpenStream(sink_);
    sink_->Up();
  }

  void Send(uint64_t, v1::NodeMessage message) override {
    if (sink_ == nullptr) return;
    const absl::Status posted = core_.Post(stream_, std::move(message));
    if (!posted.ok()) sink_->Close(posted);
  }

  void Stop() override {
    if (sink_ == nullptr) return;
    sink_->Disable();
    core_.CloseStream(stream_);
    sink_.reset();
  }

 private:
  host::CoreThread& core_;
  std::shared_ptr<CallbackSink> sink_;
  StreamId stream_;
};

}  // namespace

std::unique_ptr<agent::ServerLink> MakeEmbeddedLink(host::CoreThread& core) {
  return std::make_unique<EmbeddedLink>(core);
}

}  // namespace cadre::launcher
