// The thread that owns the core. All other threads of the server only decode and post. An event
// that is posted while this thread is idle is handled on the poster's own thread
// (base/threads/executor.h); one thread at a time runs the core, and events are handled in the
// order of their arrival. The way of an event and its effects:
//
//   Post → base/threads/executor.h (whose turn it is) → CoreHost::Handle → Core::Step → CommitQueue
//   (saves the records) → CoreHost::CarryOut → NodeSink of the node's stream
//
// With a log the state outlives this object: the thread saves the records of a batch of events
// together, before any message that depends on them is sent. Without a log the state ends with this
// object.
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
#include "rendezvous/host/agent_requests.h"
#include "rendezvous/host/core_host.h"
#include "rendezvous/host/server_view.h"
#include "rendezvous/host/stream_registry.h"
#include "rendezvous/log/record_log.h"

namespace cadre::host {

// Limits of the messages and store calls that wait for the core: their number and their bytes.
inline constexpr size_t kEventQueueLimit = 65536;
inline constexpr size_t kEventQueueBytesLimit = 128 << 20;

// A configuration for a server with a new state, using this machine's clocks.
CoreConfig NewCoreConfig();

class CoreThread {
 public:
  // Starts the thread, with the state that `durable` contains. A log has its own server_id.
  //
  // While nothing can be saved, changes are refused: store calls with the log's error, new streams
  // with UNAVAILABLE; other messages of nodes are handled, and leases are renewed.
  //
  // `account` is called by the constructor, and then by the thread that runs the core.
  explicit CoreThread(const CoreConfig& config, LogFunction log = nullptr,
                      log::OpenedLog durable = {}, AccountFunction account = nullptr);
  // Calls Stop with UNAVAILABLE.
  ~CoreThread();
  CoreThread(const CoreThread&) = delete;
  CoreThread& operator=(const CoreThread&) = delete;

  // Waits until the thread has ended. Open streams are closed with `why`, and waiting and later
  // calls answered with it. Must not be called by two threads at once, nor on the core thread.
  void Stop(const absl::Status& why);

  // As in Welcome; it never changes.
  uint64_t server_id() const;

  // All other methods are thread safe and return without waiting for the core or a disk, except the
  // last three. Post and CallStore may call sinks and `done` before they return.

  // The sink is kept until its Close was called or CloseStream has returned; a message that is
  // being sent then may reach it a little later. After Stop it is closed before this returns.
  StreamId OpenStream(std::shared_ptr<NodeSink> sink);
  // Posts the message and those that it carries (`more`). RESOURCE_EXHAUSTED: the queue is full
  // (kEventQueueLimit), and the sender's stream should be closed. Messages on a closed stream are
  // dropped.
  absl::Status Post(StreamId stream, v1::NodeMessage message);
  void CloseStream(StreamId stream);

  // For clients without a node's stream: gRPC's Store.Execute. Store requests of workers come
  // through Post. `done` is called once, by the thread that runs the core, unless DropCall comes
  // first. If the queue is full it is called with RESOURCE_EXHAUSTED before CallStore returns.
  CallId CallStore(v1::StoreRequest request, std::function<void(const v1::StoreReply&)> done);
  void DropCall(CallId call);

  // `done` is called once, on the core thread. Errors: NOT_FOUND (no such job); for a cancellation
  // also FAILED_PRECONDITION (the job has ended). `job` is an id or a name; of several jobs with
  // this name it means the newest one, or the newest of those that the caller may use (`may`).
  using StatusDone = std::function<void(absl::StatusOr<v1::JobStatus>)>;
  void AskStatus(absl::string_view job, StatusDone done, OwnerCheck may = nullptr);
  using UsageDone = std::function<void(absl::StatusOr<v1::JobUsage>)>;
  void AskUsage(absl::string_view job, UsageDone done, OwnerCheck may = nullptr);
  using AllStatusesDone = std::function<void(absl::StatusOr<std::vector<v1::JobStatus>>)>;
  void AskAllStatuses(AllStatusesDone done);
  // The same as a shared list, for callers that convert it to an answer on another thread.
  using JobListDone = std::function<void(absl::StatusOr<CoreHost::JobList>)>;
  void AskJobList(JobListDone done);
  // OK once the core has handled it: a liveness check.
  void AskHealth(std::function<void(const absl::Status&)> done);
  // The state of the whole server, for /metrics.
  using ViewDone = std::function<void(absl::StatusOr<ServerView>)>;
  void AskView(ViewDone done);
  void AskCancel(const JobCancelled& cancelled, StatusDone done, OwnerCheck may = nullptr);
  // As Core::MayRequeue, MaySignal and MayUpdate; PERMISSION_DENIED as of AskCancel.
  void AskRequeue(const JobRequeued& requeued, StatusDone done, OwnerCheck may);
  void AskSignal(const JobSignalled& signalled, StatusDone done, OwnerCheck may);
  void AskUpdate(const JobUpdated& updated, bool is_administrator, StatusDone done, OwnerCheck may);

  // Errors: those of Core::MaySubmit; or why the state cannot be saved, with a message that tells
  // whether the job may have been accepted nevertheless.
  void AskSubmit(const v1::SubmitJobRequest& request, StatusDone done, OwnerCheck may = nullptr);
  using NodesDone = std::function<void(absl::StatusOr<std::vector<v1::ClusterNodeStatus>>)>;
  void AskNodes(NodesDone done);
  // Errors: NOT_FOUND (no such node).
  void AskDrain(const v1::DrainNodeRequest& request, NodesDone done);
  // Reads the next bytes of a worker's log. `done` is called once, by the thread that runs the
  // core. Errors: those of Core::FindLog, the agent's, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED.
  void AskLog(const v1::ReadLogRequest& request, LogReads::Done done, OwnerCheck may = nullptr);
  // Likewise gets the stacks of a job's workers. Errors: those of Core::FindStacks,
  // RESOURCE_EXHAUSTED.
  void AskStacks(const v1::GetStacksRequest& request, StackRequests::Done done,
                 OwnerCheck may = nullptr);

  // The same, but they wait for the answer, briefly because the core never blocks. Must not be
  // called on the core thread.
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
