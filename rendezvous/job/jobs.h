// All jobs by name: who may begin one, whose news it is, and whose turn it is. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_JOB_JOBS_H_
#define CADRE_RENDEZVOUS_JOB_JOBS_H_

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/time.h"
#include "proto/rendezvous.pb.h"
#include "proto/spec.pb.h"
#include "proto/state.pb.h"
#include "proto/store.pb.h"
#include "rendezvous/job/job.h"
#include "rendezvous/step/context.h"

namespace cadre::job {

class Jobs {
 public:
  Jobs(step::Context* context, ClusterWaits cluster_waits)
      : context_(*context), cluster_waits_(std::move(cluster_waits)) {}

  // Null: no such job.
  const Job* Find(const std::string& name) const;
  // When the first lease of a node may be over, and when the first job is to be advanced though
  // nothing happens.
  MonoTime NextLease() const {
    return leases_.empty() ? MonoTime::Never() : leases_.begin()->first;
  }
  MonoTime NextDeadline() const {
    return deadlines_.empty() ? MonoTime::Never() : deadlines_.begin()->first;
  }
  // Nodes are connected or may come back.
  bool HasLeases() const { return !leases_.empty(); }

  // The state has a job, anew or for the first time; or has it no more.
  void Add(const std::string& name);
  void Remove(const std::string& name);
  // The server began with a state.
  void Restore();
  // The server can save again.
  void AwaitAbsent();

  // A stream's first message. INVALID_ARGUMENT and others: why it is not taken.
  absl::Status CheckJoin(const v1::NodeMessage& message) const;
  void Join(StreamId stream, const v1::NodeMessage& message);
  void Said(const std::string& job, const std::string& node, const v1::NodeMessage& message);
  void StreamClosed(const std::string& job, const std::string& node);
  void StoreCalled(CallId call, const v1::StoreRequest& request);
  void CallDropped(const std::string& job, CallId call);
  void Cancel(const std::string& job, const std::string& reason, int signal,
              v1::FailureCause cause);
  void Submit(const v1::JobSpec& spec, const std::string& user, const std::string& request_id);
  void Granted(const std::string& job);
  void LauncherEnded(const std::string& job, const std::string& node, const std::string& how);
  void CannotBegin(const std::string& job, const std::string& why, bool try_later);

  void EndLeases();
  // Advances all to which something happened or whose deadlines are over.
  void Advance();
  ForCluster TakeForCluster() { return std::exchange(for_cluster_, {}); }

  absl::Status MaySubmit(const v1::JobSpec& spec, absl::string_view user) const;
  // Why the name of this job, which may have ended, is not given to another user than its own:
  // ALREADY_EXISTS.
  absl::Status RefuseName(const std::string& name) const;

  // OK, or INTERNAL naming the job and what does not hold.
  absl::Status CheckInvariants() const;

 private:
  struct Entry {
    Entry(const std::string& name, step::Context* context, const ClusterWaits* cluster_waits,
          ForCluster* for_cluster)
        : job(name, context, cluster_waits, for_cluster) {}
    Job job;
    // As they are in `leases_` and `deadlines_`.
    MonoTime lease = MonoTime::Never();
    MonoTime deadline = MonoTime::Never();
  };
  using Timers = std::set<std::pair<MonoTime, std::string>>;

  // Does something to the job, and keeps track of what follows from it.
  template <typename Action>
  void With(const std::string& name, Action action);
  static void SetTimer(const std::string& name, MonoTime at, MonoTime* timer, Timers* timers);
  // It comes from a life of an agent that took part in the run that is over, or comes too late for
  // it.
  bool IsOfEndedJob(const v1::NodeMessage& message) const;
  // The job of the Join goes on or is created; false: the Join was rejected.
  bool Prepare(StreamId stream, const v1::Join& join);
  // `job`: its spec, phase and owner.
  void Create(saved::Job job);

  step::Context& context_;
  const ClusterWaits cluster_waits_;
  std::map<std::string, Entry> jobs_;
  // Each job by its first one.
  Timers leases_;
  Timers deadlines_;
  std::set<std::string> touched_;
  ForCluster for_cluster_;
};

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_JOBS_H_
