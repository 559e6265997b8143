// Job: one job, with its durable state, the connections of its nodes, and what happens to it. Pure;
// one thread.
//
//     ┌────────────────────────────────── requeued ──────────────────────────┐
//     ▼                                                                      │
//   QUEUED ──granted──▶ GATHERING ──formed──▶ RUNNING ──stop ordered──▶ STOPPING
//                         ▲  │                   │                         │  │
//                         │  └─▶ ended           └─▶ ended      ended ◀────┘  │
//                         └───────────────── restarted ───────────────────────┘
//
// clang-format off
//   event            QUEUED  GATHERING     RUNNING                  STOPPING                 ended
//   node joins       -       may form      spare; may grow          spare                    refused (*)
//   node reconnects  -       may form      sent what it missed      sent Stop                verdict
//   node is lost     -       one fewer     stop                     may be the root cause    forgotten
//   worker started   -       -             counted                  -                        -
//   worker exited    -       -             failed, or has saved     counted                  -
//                                          for more nodes: stop;
//                                          lost another rank: wait
//                                          for that one's end;
//                                          all have succeeded: ended
//   worker gave up   -       -             stop, unless another     -                        -
//                                          worker is to blame
//   node stopped     -       may form      stop, if an exit was     last one: restart, end   -
//                                          not reported
//   worker remains,  -       -             stop; its node is out    its node is out until    -
//   as SIGKILL does                                                 it has stopped
//   not end it
//   progress         -       -             shown                    -                        -
//   evidence         -       -             of a hang: stop, once    -                        -
//                                          there is enough; of a
//                                          standstill: shown
//   store call       error   error         carried out              error                    error
//   cancel           ended   ended         stop                     changes the reason (+)   -
//   requeue          -       QUEUED, once  stop                     changes the reason (+)   -
//                            its nodes are
//                            given back
//   granted          becomes GATHERING     -                        -                        -
//   no allocation    -       QUEUED, if it has never begun                                   -
//   is left
//   cannot begin     ended   ended         -                        -                        -
//   launcher ended   -       the reason if its node is lost                                  -
//   deadline: total  -       ended         stop                     changes the reason (+)   -
//             warning -      -             signal sent              -                        -
//             join   -       ended; if the -                        -                        -
//                            cluster owes
//                            it nodes:
//                            gives back
//                            the others
//             start  -       -             stop; or, if workers     -                        -
//                                          went on in their
//                                          processes: find out
//                                          which one is absent
//             stop   -       -             -                        nodes are lost           -
//   (*) unless no node is connected any more: then the name begins a new run.
//   (+) unless a cancel, preemption, requeue or total deadline has settled it (IsDecisive); a cancel
//       ends what a requeue would have begun again.
// clang-format on
//
// A message of a node arrives at Job::OnMessage (job.cc), which passes it on. By the field of
// v1::NodeMessage:
//   join              Join                 membership.cc
//   leave             RemoveNode           membership.cc
//   renew             OnMessage            job.cc; leases run out in EndLeases, membership.cc
//   cancel            Cancel               generation.cc
//   store             OnStoreCall          job.cc, then JobStore::Execute, job_store.cc
//   worker_started    OnWorkerStarted      worker_reports.cc   (#)
//   worker_exited     OnWorkerExited       worker_reports.cc   (#)
//   worker_gave_up    OnWorkerGaveUp       worker_reports.cc   (#)
//   worker_remains    OnUnkillableWorker   membership.cc       (#)
//   node_stopped      OnNodeStopped        worker_reports.cc   (#); of an older generation:
//                     OnOldWorkersStopped  membership.cc       (#)
//   evidence          OnEvidence           hang_diagnosis.cc   (#)
//   imports, progress OnGenerationMessage  worker_reports.cc
//   (#) by way of OnGenerationMessage, which checks of which generation the message is.
//
// Decisions are free functions: whether a generation forms (formation_decision.h), when something
// is due (generation.h), what a failure is called (failure.h), whether a restart follows
// (restart_decision.h), and which rank is to blame for a hang (hang_diagnosis.h, culprit.h). What
// comes of them goes out through JobOutbox (job_outbox.h): records (job_records.h), messages
// (orders.h, verdict.h) and notes.
//
// Durable state changes only by records: a handler commits one, state::Apply changes the state at
// once (rendezvous/state/apply.cc), and MarkDirty() makes the core call Advance() at the end of the
// step. What follows from a change, such as forming a generation when the last node has joined or
// has stopped, is decided in Advance(); no handler calls it.
#ifndef CADRE_RENDEZVOUS_JOB_JOB_H_
#define CADRE_RENDEZVOUS_JOB_JOB_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/failure.pb.h"
#include "proto/job.pb.h"
#include "proto/record.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/state.pb.h"
#include "proto/store.pb.h"
#include "rendezvous/job/generation.h"
#include "rendezvous/job/job_outbox.h"
#include "rendezvous/job/node_connections.h"
#include "rendezvous/job/volatile_state.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/context.h"

namespace cadre::job {

// Returns what a job waits for in the cluster at a host time; empty if nothing.
using ClusterWaits = std::function<std::string(const state::Job& job, MonoTime at)>;

// Events of jobs that the cluster has not processed yet.
struct ClusterEvents {
  // Jobs that were submitted, and submitted jobs that have ended.
  std::vector<std::string> changed;
  // Launchers, by job and node, that were connected and were given up: they may still run.
  std::vector<std::pair<std::string, std::string>> launchers_lost;
  // Jobs that give back their nodes until they can get all that they need.
  std::vector<std::string> gives_back;
  // Signals for all steps of a batch job.
  std::vector<std::pair<std::string, int>> signals_steps;
};

class Job {
 public:
  // The state must hold the job for as long as this object exists.
  Job(std::string name, step::Context* context, const ClusterWaits* cluster_waits,
      ClusterEvents* cluster_events);
  Job(const Job&) = delete;

  JobView view() const { return {state_, volatile_, context_}; }

  // ---- job.cc: events arrive, and each step ends.

  // Called when the server begins with the job in its state.
  void Restore();
  // Gives nodes without a stream a whole lease to reconnect, since the server has admitted none for
  // a while.
  void ExtendAbsentLeases();
  // Handles a message of a node that has joined.
  void OnMessage(const std::string& node, const v1::NodeMessage& message);
  void OnStreamClosed(const std::string& node);
  void OnStoreCall(const keyspace::Requester& requester, const v1::StoreRequest& request);
  void OnStoreCallDropped(CallId call);
  // Called when a node was refused because its spec differs from the job's.
  void OnNodeRefused(const std::string& why);
  // Called when the job has got one more node of the cluster.
  void OnNodeGranted();
  // Called when the job's launcher there ended without being told to.
  void OnLauncherEnded(const std::string& node, const std::string& how);
  // Called when the job, which has never begun, cannot begin at present (`try_later`) or at all.
  void OnCannotBegin(const std::string& why, bool try_later);
  // Marks that the job must be advanced. `status_changed`: the status that its nodes are shown has
  // changed.
  void MarkDirty(bool status_changed);
  // Decides what follows from events and time, and sends the status if it has changed.
  void Advance();

  // ---- membership.cc: nodes join, leave and are lost.

  // Handles a stream's first message. `message` must be valid, and if the job was submitted its
  // launcher one of the cluster's.
  void Join(StreamId stream, const v1::NodeMessage& message);
  // Removes nodes whose leases have run out.
  void EndLeases();

  // ---- generation.cc: generations form, run, stop and end.

  // `cause` is CANCELLED or PREEMPTED. `at_once`: nodes that are still stopping get no further
  // grace; a restarted server does not know that any more.
  void Cancel(const std::string& reason, int signal, v1::FailureCause cause, bool at_once);
  // Stops what runs of a submitted job, gives its nodes back, and has it wait in the queue again.
  // Does nothing if it waits there, has ended, or is being ended.
  void Requeue(const std::string& reason);
  // Sends the workers of the running generation a signal.
  void Signal(int signal);

 private:
  // ---- membership.cc
  bool MayJoin(StreamId stream, const v1::Join& join);
  void Admit(StreamId stream, const v1::NodeMessage& message);
  void Resume(StreamId stream, const v1::NodeMessage& message);
  void Attach(StreamId stream, const v1::Join& join);
  void OnOldWorkersStopped(const std::string& node, const v1::NodeStopped& stopped);
  // Called when SIGKILL does not end a worker, as `failure` describes: the generation ends without
  // the node, which takes part in none until it has stopped. A node of the cluster is given up for
  // another.
  void OnUnkillableWorker(v1::Failure failure);
  // Removes the node from the job and stops the generation if its workers are missed.
  void RemoveNode(const std::string& node, v1::FailureCause cause, v1::NodeRemoved::How how,
                  const std::string& reason, absl::Status close);

  // ---- generation.cc. The Advance functions return whether something changed.
  bool AdvancePhase();
  bool AdvanceQueued();
  bool AdvanceGathering();
  bool AdvanceRunning();
  bool AdvanceStopping();
  void Form(const FormationDecision& decision);
  // Stops the running generation, or corrects why it is stopped.
  void OrderStop(const std::string& reason, const std::optional<v1::Failure>& root_cause);
  void RestartOrEnd();
  // Commits the record, a GatheringBegan, as that of a job that gives its nodes back.
  void ReturnToQueue(v1::Record record);
  // Sends the workers, or the steps of a batch job, the signal that warns of the end of the job's
  // time.
  void Warn();
  void End(v1::JobPhase outcome, int exit_status, const std::string& message,
           const std::optional<v1::Failure>& root_cause);

  // ---- worker_reports.cc: nodes report on their workers.
  // Handles a message about a generation's workers; it may be an old generation.
  void OnGenerationMessage(const std::string& node, const v1::NodeMessage& message);
  void OnWorkerStarted(const saved::Member& member, const v1::WorkerStarted& started);
  void OnWorkerExited(const saved::Member& member, const v1::WorkerExited& exited);
  void OnWorkerGaveUp(const saved::Member& member, const v1::WorkerGaveUp& gave_up);
  void OnNodeStopped(const saved::Member& member, const v1::NodeStopped& stopped);
  void FailWorker(const v1::Failure& failure);

  // ---- hang_diagnosis.cc: nodes are asked where their workers are, and a rank is found to blame.
  void OnEvidence(const saved::Member& member, const v1::NodeEvidence& evidence);
  // Returns whether the generation was stopped because of its suspects.
  bool AdvanceDiagnosis();
  void EndDiagnosis();
  void EndProbe();
  // Fails the generation because of the victims, when no rank has failed for a reason of its own.
  void FailVictims(const std::vector<v1::RankEvidence>& others);

  const std::string name_;
  step::Context& context_;
  const state::Job& state_;
  const ClusterWaits& cluster_waits_;
  ClusterEvents& cluster_events_;
  VolatileState volatile_;
  JobOutbox out_;
};

// Returns OK if the invariants of a job between two steps hold, or INTERNAL naming the job and what
// does not hold. In job.cc.
absl::Status CheckJob(const std::string& name, const JobView& view);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_JOB_H_
