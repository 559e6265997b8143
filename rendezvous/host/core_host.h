// Connects the core to streams, calls and the log: the core's messages are sent after its records
// are saved. Used by one thread at a time, the one that has the turn in CoreThread.
#ifndef CADRE_RENDEZVOUS_HOST_CORE_HOST_H_
#define CADRE_RENDEZVOUS_HOST_CORE_HOST_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "proto/accounting.pb.h"
#include "proto/control.pb.h"
#include "rendezvous/accounting/rows.h"
#include "rendezvous/core/core.h"
#include "rendezvous/host/agent_requests.h"
#include "rendezvous/host/commit_queue.h"
#include "rendezvous/host/stream_registry.h"
#include "rendezvous/log/record_log.h"
#include "rendezvous/web/counters.h"

namespace cadre::host {

// Receives the core's notes for the log, one line per call, one at a time; must not block.
using LogFunction = std::function<void(const std::string&)>;
// Takes jobs that have ended, for the accounting, once their end is saved; must not block, except
// at the start, when they are all those that the server knows.
using AccountFunction = std::function<void(std::vector<v1::AccountedJob> ended, bool at_start)>;
// Whether the caller may use a job of this owner; empty: the administrators.
using OwnerCheck = std::function<absl::Status(absl::string_view owner)>;

// How long the list of all jobs is cached: not at all if it took less than `cheap` to make,
// otherwise `factor` times as long as it took.
struct JobListCaching {
  absl::Duration cheap = absl::Milliseconds(5);
  int factor = 10;
};

class CoreHost {
 public:
  // Begins with the state that `durable` contains. `account` may be null.
  CoreHost(const CoreConfig& config, LogFunction log, log::OpenedLog durable,
           StreamRegistry& registry, const JobListCaching& list_caching = {},
           AccountFunction account = nullptr);

  void Handle(Event&& event);
  // Writes all messages queued on streams since the last Flush: one write for several, because a
  // write costs more than a message.
  void Flush();

  // When the host has work even if no event comes; a time in the past: it has work now.
  MonoTime Due() const;
  // Whether events can be handled now without waiting for the disk.
  bool IsFree() const;

  // Call it between the events of a long batch.
  void SaveInBackground();
  // Call it after each batch. `more`: more events are queued, so that it need not wait for the
  // disk. Otherwise it waits: if the core took events while the disk hangs, timeouts would start
  // for orders that have not been sent. `last`: no event follows.
  void EndBatch(bool more, bool last);

  // The other methods are for callers outside of the core, who must not see what is not saved yet:
  // call CommitAll first.
  void CommitAll();
  const Core& core() const { return core_; }
  // Returns the name of the job that a user means by an id or a name; the text itself if there is
  // none. Jobs that the caller may use come before others of the same name.
  std::string NameOf(const std::string& job, const OwnerCheck& may) const;
  // NOT_FOUND: there is no such job.
  absl::StatusOr<v1::JobStatus> Status(const std::string& job);
  // All jobs, by name. A list of many jobs takes long to make, so it is cached for some time
  // (JobListCaching): however often callers ask, nine tenths of the time are left for other work.
  // While it is cached, only jobs that have changed are updated: those with new records, and those
  // that a caller got from Status(), Submit() or Cancel(). So a caller never finds a job missing,
  // or in an earlier state than an answer or a message on a node's stream has reported. The reason
  // why a job waits, and its progress, may be as old as the list.
  using JobList = std::shared_ptr<const std::vector<std::shared_ptr<const v1::JobStatus>>>;
  JobList AllStatuses();
  const web::Counters& counters() const { return counters_; }
  bool saves() const { return commits_.save_error().ok(); }
  absl::StatusOr<v1::JobStatus> Submit(const JobSubmitted& submitted, const OwnerCheck& may);
  absl::StatusOr<v1::JobStatus> Cancel(const JobCancelled& cancelled, const OwnerCheck& may);
  absl::StatusOr<v1::JobStatus> Requeue(const JobRequeued& requeued, const OwnerCheck& may);
  absl::StatusOr<v1::JobStatus> Signal(const JobSignalled& signalled, const OwnerCheck& may);
  absl::StatusOr<v1::JobStatus> Update(const JobUpdated& updated, bool is_administrator,
                                       const OwnerCheck& may);
  absl::StatusOr<std::vector<v1::ClusterNodeStatus>> Drain(const NodeDrained& drained);
  // Logs are no part of the state, so reads of them bypass the core.
  void ReadLog(v1::ReadLogRequest request, const LogReads::Done& done, const OwnerCheck& may);
  // The same holds for stacks.
  void GetStacks(v1::GetStacksRequest request, const StackRequests::Done& done,
                 const OwnerCheck& may);

 private:
  void Replay(const std::vector<v1::Record>& records, const accounting::RowOrigin& origin);
  void Step(const Event& event);
  // The job's entry in the list must be made again.
  void MarkJobChanged(MonoTime now, const std::string& job);
  void UpdateList(MonoTime now);
  // For an event about the job of its name in the state: checks that the caller may use it, and
  // `possible`.
  template <typename JobEvent, typename Possible>
  absl::StatusOr<v1::JobStatus> StepOnJob(JobEvent event, const OwnerCheck& may,
                                          const Possible& possible);
  // For a caller that waits until the event is saved. `taken`: the core has handled the event, so
  // that it will be saved once saving works again.
  absl::Status StepAndSave(const Event& event, bool* taken = nullptr);
  // Checked before anything of the job is used, because other errors reveal facts about it too. OK
  // if there is no such job.
  absl::Status MayUse(const std::string& job, const OwnerCheck& may) const;
  // Returns an empty string also if there is no such job.
  std::string OwnerOf(const std::string& job) const;
  // Called while nothing can be saved. True: the event was refused and must not reach the core.
  // Other messages of nodes do, so that their leases are renewed.
  bool Refuse(Event* event);
  // Informs the core when saving begins to fail and when it works again.
  void ReportCanSave();

  // Carries out the core's effects other than records, in the order that core.h requires.
  void CarryOut(Effects effects);
  void Send(StreamId stream, v1::ServerMessage message);
  void Close(StreamId stream, const absl::Status& why);
  void Reply(const ReplyToCall& reply);
  void Log(const std::string& line) const;

  StreamRegistry& registry_;
  const LogFunction log_;
  const AccountFunction account_;
  Core core_;
  // Removed at their StreamClosed.
  std::set<StreamId> closed_by_core_;
  // Streams with messages sent since the last Flush.
  std::map<StreamId, std::shared_ptr<NodeSink>> unflushed_;
  web::Counters counters_;
  CommitQueue commits_;
  bool can_save_ = true;  // as the core was last informed
  LogReads log_reads_;
  StackRequests stack_requests_;
  const JobListCaching list_caching_;
  // The list of AllStatuses(), and its jobs by name.
  JobList list_;
  std::map<std::string, std::shared_ptr<const v1::JobStatus>> list_entries_;
  MonoTime list_valid_until_;
  // Jobs that may have changed since they were listed, while the list is cached.
  std::set<std::string> changed_;
};

}  // namespace cadre::host

#endif  // CADRE_RENDEZVOUS_HOST_CORE_HOST_H_
