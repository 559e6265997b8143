// The one thread that owns the core. Everything else in the server only decodes and posts. What is
// posted while the thread has nothing to do is handled on the poster's own thread
// (base/threads/executor.h); one thread at a time runs the core, and events are handled in the
// order in which they came. An event's way, here and back:
//
//   Post → base/threads/executor.h (whose turn it is) → CoreHost::Handle → Core::Step → CommitQueue
//   (saves the records) → CoreHost::CarryOut → NodeSink of the node's stream
//
// With a log the state outlives this object: records are saved by the thread, those of one batch of
// events together, before anything that follows from them is said. Without one it lives as long as
// this.
#ifndef CADRE_RENDEZVOUS_HOST_CORE_THREAD_H_
#define CADRE_RENDEZVOUS_HOST_CORE_THREAD_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/store.pb.h"
#include "rendezvous/core/core.h"
#include "rendezvous/host/core_host.h"
#include "rendezvous/host/log_reads.h"
#include "rendezvous/host/node_sink.h"
#include "rendezvous/host/server_view.h"
#include "rendezvous/host/stack_asks.h"
#include "rendezvous/log/record_log.h"

namespace cadre::host {

// Messages and store calls that may wait for the core, together: this many, and of this size.
inline constexpr size_t kEventQueueLimit = 65536;
inline constexpr size_t kEventQueueBytesLimit = 128 << 20;

// A configuration for a server that begins its life now, on this machine's clocks.
CoreConfig NewCoreConfig();

class CoreThread {
 public:
  // Starts the thread, with the state that `durable` holds. A log brings its own server_id.
  //
  // While it cannot save, changes are refused: store calls with its error, new streams with
  // UNAVAILABLE; what nodes say is taken, and leases are kept.
  explicit CoreThread(const CoreConfig& config, LogFunction log = nullptr,
                      log::OpenedLog durable = {});
  // Stops it, with UNAVAILABLE.
  ~CoreThread();
  CoreThread(const CoreThread&) = delete;
  CoreThread& operator=(const CoreThread&) = delete;

  // Waits until the thread has ended. Streams still open are closed, and calls that wait or come
  // later answered, with `why`. Not for two threads at once, nor for the core thread.
  void Stop(const absl::Status& why);

  // As in Welcome; the same for as long as this lives.
  uint64_t server_id() const;

  // All other methods are thread safe and return without waiting for the core or a disk, except the
  // last three. Post and CallStore may call sinks and `done` before they return.

  // The sink is kept until Close was called on it or CloseStream returns. What the core
  // has for it at that moment may come a little later. After Stop it is closed before this returns.
  StreamId OpenStream(std::shared_ptr<NodeSink> sink);
  // The message and those that it carries (`more`). RESOURCE_EXHAUSTED when the queue is full
  // (kEventQueueLimit): the sender should be closed. On a stream that was closed they are dropped.
  absl::Status Post(StreamId stream, v1::NodeMessage message);
  void CloseStream(StreamId stream);

  // For who speaks no node's stream: gRPC's Store.Execute. What workers ask comes through Post.
  // `done` is called once, by the thread that runs the core, unless DropCall came first. When the
  // queue is full it is called with RESOURCE_EXHAUSTED before CallStore returns.
  CallId CallStore(v1::StoreRequest request, std::function<void(const v1::StoreReply&)> done);
  void DropCall(CallId call);

  // `done` is called once, on the core thread. Errors: NOT_FOUND (no such job); for a cancellation
  // FAILED_PRECONDITION (it has ended).
  using StatusDone = std::function<void(absl::StatusOr<v1::JobStatus>)>;
  void AskStatus(absl::string_view job, StatusDone done);
  using UsageDone = std::function<void(absl::StatusOr<v1::JobUsage>)>;
  void AskUsage(absl::string_view job, UsageDone done);
  using AllStatusesDone = std::function<void(absl::StatusOr<std::vector<v1::JobStatus>>)>;
  void AskAllStatuses(AllStatusesDone done);
  // The same, for who makes something long of it on another thread.
  using JobListDone = std::function<void(absl::StatusOr<CoreHost::JobList>)>;
  void AskJobList(JobListDone done);
  // OK, once the core has come to it: it is alive. Asks for nothing else.
  void AskHealth(std::function<void(const absl::Status&)> done);
  // The whole server, for /metrics.
  using ViewDone = std::function<void(absl::StatusOr<ServerView>)>;
  void AskView(ViewDone done);
  void AskCancel(const JobCancelled& cancelled, StatusDone done, OwnerCheck may = nullptr);

  // Errors: as Core::MaySubmit and, where the caller may not use the job that has the name,
  // Core::RefuseName; or why the state cannot be saved, and then the message says whether the job
  // may have been taken all the same.
  void AskSubmit(const v1::SubmitJobRequest& request, StatusDone done, OwnerCheck may = nullptr);
  using NodesDone = std::function<void(absl::StatusOr<std::vector<v1::ClusterNodeStatus>>)>;
  void AskNodes(NodesDone done);
  // Errors: NOT_FOUND (no such node).
  void AskDrain(const v1::DrainNodeRequest& request, NodesDone done);
  // `done` is called once, by the thread that runs the core: the next bytes of a worker's log.
  // Errors: those of Core::FindLog, the agent's, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED.
  void AskLog(const v1::ReadLogRequest& request, LogReads::Done done, OwnerCheck may = nullptr);
  // Likewise where a job's workers are. Errors: those of Core::FindStacks, RESOURCE_EXHAUSTED.
  void AskStacks(const v1::GetStacksRequest& request, StackAsks::Done done,
                 OwnerCheck may = nullptr);

  // The same, waiting for the answer (the core never blocks, so this is short). Not for the core
  // thread itself.
  absl::StatusOr<v1::JobStatus> Status(absl::string_view job);
  absl::StatusOr<std::vector<v1::JobStatus>> AllStatuses();
  absl::StatusOr<v1::JobStatus> Cancel(absl::string_view job, absl::string_view reason, int signal,
                                       v1::FailureCause cause = v1::CANCELLED);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cadre::host

#endif  // CADRE_RENDEZVOUS_HOST_CORE_THREAD_H_
