// Jobs: all jobs by name. A submitted job has the name that it was submitted with if that is free,
// and else this name and its id. Decides which nodes may begin one, passes on events, and advances
// those that are due. Pure; one thread.
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
#include "proto/control.pb.h"
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

  // Returns null if there is no such job.
  const Job* Find(const std::string& name) const;
  // When the first lease of a node may run out (lease_now() of the clock), and when the first job
  // must be advanced though nothing happens (now() of the clock).
  MonoTime NextLease() const {
    return leases_.empty() ? MonoTime::Never() : leases_.begin()->first;
  }
  MonoTime NextDeadline() const {
    return deadlines_.empty() ? MonoTime::Never() : deadlines_.begin()->first;
  }
  // Whether nodes are connected or may reconnect.
  bool HasLeases() const { return !leases_.empty(); }

  // Called when a job was added to the state, perhaps in place of an ended one, or removed from it.
  void Add(const std::string& name);
  void Remove(const std::string& name);
  // Called when the server begins with a state.
  void Restore();
  // Called when the server can save again.
  void ExtendAbsentLeases();

  // Checks a stream's first message; INVALID_ARGUMENT or others if it is rejected.
  absl::Status CheckJoin(const v1::NodeMessage& message) const;
  void Join(StreamId stream, const v1::NodeMessage& message);
  void OnNodeMessage(const std::string& job, const std::string& node,
                     const v1::NodeMessage& message);
  void OnStreamClosed(const std::string& job, const std::string& node);
  void OnStoreCall(CallId call, const v1::StoreRequest& request);
  void OnStoreCallDropped(const std::string& job, CallId call);
  void Cancel(const std::string& job, const std::string& reason, int signal, v1::FailureCause cause,
              bool at_once = false);
  void Requeue(const std::string& job, const std::string& reason, bool hold);
  void Signal(const std::string& job, int signal);
  void Update(const std::string& job, const v1::JobUpdate& update);
  // `within`: the id of the batch job of which the job is a step; empty: it is none. `array`: the
  // elements of the array that it is; without indices: it is one job.
  void Submit(const v1::JobSpec& spec, const std::string& user, const std::string& request_id,
              const std::string& within = "", const v1::ArrayElements& array = {});
  void OnNodeGranted(const std::string& job);
  void OnLauncherEnded(const std::string& job, const std::string& node, const std::string& how);
  void OnCannotBegin(const std::string& job, const std::string& why, bool try_later);

  void EndLeases();
  // Advances all jobs to which something happened or whose deadlines have passed.
  void Advance();
  ClusterEvents TakeClusterEvents() { return std::exchange(cluster_events_, {}); }

  absl::Status MaySubmit(const v1::JobSpec& spec, absl::string_view user,
                         const v1::ArrayElements& array = {}) const;

  // Returns OK, or INTERNAL naming the job and what does not hold.
  absl::Status CheckInvariants() const;

 private:
  struct Entry {
    Entry(const std::string& name, step::Context* context, const ClusterWaits* cluster_waits,
          ClusterEvents* cluster_events)
        : job(name, context, cluster_waits, cluster_events) {}
    Job job;
    // As they are in `leases_` and `deadlines_`.
    MonoTime lease = MonoTime::Never();
    MonoTime deadline = MonoTime::Never();
  };
  using Timers = std::set<std::pair<MonoTime, std::string>>;

  // Runs `action` on the job and updates the timers and sets that depend on it.
  template <typename Action>
  void With(const std::string& name, Action action);
  static void SetTimer(const std::string& name, MonoTime at, MonoTime* timer, Timers* timers);
  // Whether the Join belongs to a run that has ended: its agent took part in that run, or the
  // server serves only one run and the node is too late for it.
  bool IsOfEndedJob(const v1::NodeMessage& message) const;
  // Finds or creates the job of the Join; returns false if the Join was rejected.
  bool Prepare(StreamId stream, const v1::Join& join);
  // `job` has spec, phase and owner set. An ended job of its name must not have connected nodes.
  void Create(saved::Job job);
  // Submits one job: `submission` has what sets it apart from others of the spec.
  void SubmitOne(const v1::JobSpec& spec, saved::Submission submission, const state::Job* batch);
  // Returns the job with the id that the text is; null if it is none.
  const state::Job* FindById(absl::string_view text) const;
  // Returns the name with "-ID" at its end, shortened to the length of a job's name, and repeated
  // if a job has been called so.
  std::string NameWithId(absl::string_view name, uint64_t id) const;
  // Returns the new name of the ended job with this name; empty if it has no id and is replaced.
  std::string EndedKeptAs(const std::string& name) const;
  // Whether a job that the user submits may take the name: no job has it, or one that has ended
  // completely and is kept under another name or is the user's own.
  bool IsNameFree(const std::string& name, absl::string_view user) const;

  step::Context& context_;
  const ClusterWaits cluster_waits_;
  std::map<std::string, Entry> jobs_;
  // The earliest lease and deadline of each job.
  Timers leases_;
  Timers deadlines_;
  std::set<std::string> dirty_;
  ClusterEvents cluster_events_;
};

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_JOBS_H_
