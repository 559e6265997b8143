#include "launcher/attach/embedded_link.h"

#include <mutex>
#include <utility>

namespace cadre::launcher {
namespace {

constexpr uint64_t kOnlyStream = 1;

// Outlives the link, should the core thread be in the middle of a Send when the link is stopped.
class CallbackSink : public host::NodeSink {
 public:
  explicit CallbackSink(agent::LinkCallbacks callbacks) : callbacks_(std::move(callbacks)) {}

  void Up() {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (!silent_) callbacks_.on_up(kOnlyStream);
  }
  void Send(v1::ServerMessage message) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (!silent_) callbacks_.on_message(std::move(message));
  }
  void Close(const absl::Status& status) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (!silent_) {
      callbacks_.on_down(status.ok() ? absl::UnavailableError("the server closed the stream")
                                     : status);
    }
    silent_ = true;
  }
  // No callback runs after this; one that is running has ended.
  void Silence() {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    silent_ = true;
  }

 private:
  // Recursive: a callback may lead to a message to a server that can take no more, which ends this.
  std::recursive_mutex mutex_;
  bool silent_ = false;
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
    sink_->Silence();
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
