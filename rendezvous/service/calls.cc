#include "rendezvous/service/calls.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/channel_arguments.h"

namespace cadre {
namespace {

// Shared with the core thread, whose answer may come when gRPC is already done with the call.
// OnDone is what lets gRPC's side go.
class UnaryCall : public grpc::ServerUnaryReactor, public std::enable_shared_from_this<UnaryCall> {
 public:
  void Keep() { self_ = shared_from_this(); }

  void OnCancel() override {
    EndWith(absl::CancelledError("the caller has gone"), [] {});
  }
  void OnDone() override {
    // The last line: nothing of this object may be used after it.
    const std::shared_ptr<UnaryCall> self = std::move(self_);
  }

 protected:
  // Runs `fill`, which writes the reply, and ends the call; nothing if it has ended before.
  template <typename Fill>
  void EndWith(const absl::Status& status, const Fill& fill) {
    const absl::MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    fill();
    Finish(ToGrpcStatus(status));
  }

 private:
  std::shared_ptr<UnaryCall> self_;
  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

class StoreCall final : public UnaryCall {
 public:
  StoreCall(std::shared_ptr<CoreThread> core, v1::StoreReply* reply)
      : core_(std::move(core)), reply_(reply) {}

  void Start(const v1::StoreRequest& request) {
    Keep();
    auto self = std::static_pointer_cast<StoreCall>(shared_from_this());
    // gRPC runs no reaction before the method that calls this has returned, so OnCancel sees call_.
    call_ = core_->CallStore(request, [self](const v1::StoreReply& reply) {
      self->EndWith(absl::OkStatus(), [&] { *self->reply_ = reply; });
    });
  }

  void OnCancel() override {
    core_->DropCall(call_);
    UnaryCall::OnCancel();
  }

 private:
  const std::shared_ptr<CoreThread> core_;
  v1::StoreReply* const reply_;
  CallId call_;
};

class StatusCall final : public UnaryCall {
 public:
  explicit StatusCall(v1::JobStatus* reply) : reply_(reply) {}

  void Answer(absl::StatusOr<v1::JobStatus> status) {
    EndWith(status.status(), [&] {
      if (status.ok()) *reply_ = *std::move(status);
    });
  }

 private:
  v1::JobStatus* const reply_;
};

class ListCall final : public UnaryCall {
 public:
  explicit ListCall(v1::ListJobsReply* reply) : reply_(reply) {}

  void Answer(absl::StatusOr<std::vector<v1::JobStatus>> jobs) {
    EndWith(jobs.status(), [&] {
      if (!jobs.ok()) return;
      for (v1::JobStatus& job : *jobs) *reply_->add_jobs() = std::move(job);
    });
  }

 private:
  v1::ListJobsReply* const reply_;
};

class NodesCall final : public UnaryCall {
 public:
  explicit NodesCall(v1::ListNodesReply* reply) : reply_(reply) {}

  void Answer(absl::StatusOr<std::vector<v1::ClusterNodeStatus>> nodes) {
    EndWith(nodes.status(), [&] {
      if (!nodes.ok()) return;
      for (v1::ClusterNodeStatus& node : *nodes) *reply_->add_nodes() = std::move(node);
    });
  }

 private:
  v1::ListNodesReply* const reply_;
};

class LogCall final : public UnaryCall {
 public:
  explicit LogCall(v1::ReadLogReply* reply) : reply_(reply) {}

  void Answer(absl::StatusOr<std::string> bytes) {
    EndWith(bytes.status(), [&] {
      if (bytes.ok()) reply_->set_bytes(*std::move(bytes));
    });
  }

 private:
  v1::ReadLogReply* const reply_;
};

class RefusedCall final : public grpc::ServerUnaryReactor {
 public:
  explicit RefusedCall(const absl::Status& status) { Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerUnaryReactor* ServeStoreCall(std::shared_ptr<CoreThread> core,
                                         const v1::StoreRequest& request, v1::StoreReply* reply) {
  const auto call = std::make_shared<StoreCall>(std::move(core), reply);
  call->Start(request);
  return call.get();
}

grpc::ServerUnaryReactor* ServeListJobs(CoreThread& core, v1::ListJobsReply* reply) {
  const auto call = std::make_shared<ListCall>(reply);
  call->Keep();
  core.AskAllStatuses(
      [call](absl::StatusOr<std::vector<v1::JobStatus>> all) { call->Answer(std::move(all)); });
  return call.get();
}

grpc::ServerUnaryReactor* ServeGetJob(CoreThread& core, const v1::GetJobRequest& request,
                                      v1::JobStatus* reply) {
  const auto call = std::make_shared<StatusCall>(reply);
  call->Keep();
  core.AskStatus(request.name(),
                 [call](absl::StatusOr<v1::JobStatus> status) { call->Answer(std::move(status)); });
  return call.get();
}

grpc::ServerUnaryReactor* ServeCancelJob(CoreThread& core, const v1::CancelJobRequest& request,
                                         v1::JobStatus* reply) {
  const auto call = std::make_shared<StatusCall>(reply);
  call->Keep();
  constexpr int kNoSignal = 0;
  core.AskCancel(request.name(), request.reason(), kNoSignal,
                 [call](absl::StatusOr<v1::JobStatus> status) { call->Answer(std::move(status)); });
  return call.get();
}

grpc::ServerUnaryReactor* ServeSubmitJob(CoreThread& core, const v1::SubmitJobRequest& request,
                                         v1::JobStatus* reply) {
  const auto call = std::make_shared<StatusCall>(reply);
  call->Keep();
  core.AskSubmit(request.spec(), request.user(),
                 [call](absl::StatusOr<v1::JobStatus> status) { call->Answer(std::move(status)); });
  return call.get();
}

grpc::ServerUnaryReactor* ServeListNodes(CoreThread& core, v1::ListNodesReply* reply) {
  const auto call = std::make_shared<NodesCall>(reply);
  call->Keep();
  core.AskNodes([call](absl::StatusOr<std::vector<v1::ClusterNodeStatus>> nodes) {
    call->Answer(std::move(nodes));
  });
  return call.get();
}

grpc::ServerUnaryReactor* ServeDrainNode(CoreThread& core, const v1::DrainNodeRequest& request,
                                         v1::ListNodesReply* reply) {
  const auto call = std::make_shared<NodesCall>(reply);
  call->Keep();
  core.AskDrain(request, [call](absl::StatusOr<std::vector<v1::ClusterNodeStatus>> nodes) {
    call->Answer(std::move(nodes));
  });
  return call.get();
}

grpc::ServerUnaryReactor* ServeReadLog(CoreThread& core, const v1::ReadLogRequest& request,
                                       v1::ReadLogReply* reply) {
  const auto call = std::make_shared<LogCall>(reply);
  call->Keep();
  core.AskLog(request,
              [call](absl::StatusOr<std::string> bytes) { call->Answer(std::move(bytes)); });
  return call.get();
}

grpc::ServerUnaryReactor* RefuseCall(const absl::Status& status) { return new RefusedCall(status); }

}  // namespace cadre
