// The core, and what lies between it and the world: what it says goes out after its records were
// saved. Run by one thread at a time, the one that has the turn in CoreThread.
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
#include "base/time.h"
#include "proto/control.pb.h"
#include "rendezvous/core/core.h"
#include "rendezvous/host/commit_queue.h"
#include "rendezvous/host/connections.h"
#include "rendezvous/host/log_reads.h"
#include "rendezvous/host/stack_asks.h"
#include "rendezvous/log/record_log.h"
#include "rendezvous/web/counters.h"

namespace cadre::host {

// Receives the core's notes, a line each, one at a time; must not block.
using LogFunction = std::function<void(const std::string&)>;
// Whether the caller may do that with a job of this owner; empty: the administrators.
using OwnerCheck = std::function<absl::Status(absl::string_view owner)>;

class CoreHost {
 public:
  // With the state that `durable` holds.
  CoreHost(const CoreConfig& config, LogFunction log, log::OpenedLog durable,
           Connections& connections);

  void Handle(Event&& event);
  // All that was said to a stream since the last Flush goes out at once: a write costs more than a
  // message.
  void Flush();

  // When the host has something to do though nothing happens; long ago: it has already.
  MonoTime Due() const;
  // Whether events can be handled now without a wait for the disk.
  bool IsFree() const;

  // Between the events of a batch that is long.
  void SaveBeside();
  // After a batch. `more`: others wait already; else it waits for the disk: if the host went on to
  // take events while that stands still, the core would count the time for orders that nobody is
  // told. `last`: nothing comes after it.
  void EndBatch(bool more, bool last);

  // The rest is for callers outside of the core, who are not shown what may still be lost:
  // Settle comes first.
  void Settle();
  const Core& core() const { return core_; }
  // All jobs as they are, or as they were a moment ago where there are so many that it takes long
  // to put them together: however many ask, nine tenths of the time are left for everything else.
  using JobList = std::shared_ptr<const std::vector<v1::JobStatus>>;
  JobList AllStatuses();
  const web::Counters& counters() const { return counters_; }
  bool saves() const { return commits_.trouble().ok(); }
  absl::StatusOr<v1::JobStatus> Submit(const JobSubmitted& submitted, const OwnerCheck& may);
  absl::StatusOr<v1::JobStatus> Cancel(const JobCancelled& cancelled, const OwnerCheck& may);
  absl::StatusOr<std::vector<v1::ClusterNodeStatus>> Drain(const NodeDrained& drained);
  // Logs are no part of the state: what is read passes the core by.
  void ReadLog(const v1::ReadLogRequest& request, const LogReads::Done& done,
               const OwnerCheck& may);
  // Likewise where workers are.
  void GetStacks(const v1::GetStacksRequest& request, const StackAsks::Done& done,
                 const OwnerCheck& may);

 private:
  void Step(const Event& event);
  // For a caller that is to hear whether it is saved. `taken`: the core has it, so that it is saved
  // with all else once that is possible again.
  absl::Status StepAndSave(const Event& event, bool* taken = nullptr);
  // Asked before anything of the job is looked at: why it cannot be done tells of it too. OK where
  // there is no such job.
  absl::Status MayUse(const std::string& job, const OwnerCheck& may) const;
  // Empty also where there is no such job.
  std::string OwnerOf(const std::string& job) const;
  // Nothing can be saved: whether the event ends here. What a node says keeps its lease.
  bool Refuse(Event* event);
  // The core hears of the end of its trouble too.
  void TellWhetherItCanSave();

  // Does all that the core asks for besides its records, in the order that core.h demands.
  void CarryOut(Effects effects);
  void Send(StreamId stream, v1::ServerMessage message);
  void Close(StreamId stream, const absl::Status& why);
  void Reply(const ReplyToCall& reply);
  void Say(const std::string& line) const;

  Connections& connections_;
  const LogFunction log_;
  Core core_;
  // Until their StreamClosed.
  std::set<StreamId> closed_by_core_;
  // Something was sent to them since the last Flush.
  std::map<StreamId, std::shared_ptr<NodeSink>> unflushed_;
  web::Counters counters_;
  CommitQueue commits_;
  bool can_save_ = true;  // as the core was told
  LogReads log_reads_;
  StackAsks stack_asks_;
  JobList list_;
  MonoTime list_good_until_;
};

}  // namespace cadre::host

#endif  // CADRE_RENDEZVOUS_HOST_CORE_HOST_H_
