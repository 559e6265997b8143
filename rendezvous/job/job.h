// One job: what is durable of it, how its nodes are connected, and what happens to it. Pure; one
// thread.
//
//   QUEUED ──granted──▶ GATHERING ──formed──▶ RUNNING ──stop ordered──▶ STOPPING
//                         ▲  │                   │                         │  │
//                         │  └─▶ ended           └─▶ ended      ended ◀────┘  │
//                         └───────────────── restarted ───────────────────────┘
//
// clang-format off
//   event            QUEUED  GATHERING     RUNNING                  STOPPING                 ended
//   node joins       -       may form      spare; may grow          spare                    refused (*)
//   node comes back  -       may form      told what it missed      told to stop             told the end
//   node is lost     -       one fewer     stop                     may be the root cause    forgotten
//   worker started   -       -             counted                  -                        -
//   worker exited    -       -             failed, or has saved     counted                  -
//                                          for more nodes: stop;
//                                          lost another one: wait
//                                          for that one's end;
//                                          all have succeeded: ended
//   worker gave up   -       -             stop, where nobody else  -                        -
//                                          is to blame
//   node stopped     -       may form      stop, where an exit is   last one: restart, end   -
//                                          unreported
//   worker remains   -       -             stop; its node is out    its node is out until    -
//                                                                   it has stopped
//   progress         -       -             shown                    -                        -
//   evidence         -       -             of a hang: stop, once    -                        -
//                                          enough of it; of a
//                                          standstill: shown
//   store call       no      no            carried out              no                       no
//   cancel           ended   ended         stop                     changes the reason (+)   -
//   granted          becomes GATHERING     -                        -                        -
//   no part is left  -       QUEUED, where it has never begun                                -
//   cannot begin     ended   ended         -                        -                        -
//   launcher ended   -       why its node is lost, if it is                                  -
//   deadline: total  -       ended         stop                     changes the reason (+)   -
//             join   -       ended; where  -                        -                        -
//                            the cluster
//                            owes it nodes:
//                            gives back
//                            the others
//             start  -       -             stop; or, of those who   -                        -
//                                          went on in their
//                                          processes: who is absent?
//             stop   -       -             -                        nodes are lost           -
//   (*) unless no node is connected any more: then the name begins a new run.
//   (+) where no cancel, preemption or total deadline has settled it (HasLastWord).
// clang-format on
//
// A stopped generation is followed by another where the restart policy says so (restart.h). What is
// durable changes by records alone: a handler commits one, state::Apply changes the state at once
// (rendezvous/state/apply_job.cc, apply_generation.cc) and Touch asks the core for an Advance at
// the end of the step. So what follows from a change, such as forming a generation when the last
// node has come or has stopped, is decided in Advance, and no handler calls it.
#ifndef CADRE_RENDEZVOUS_JOB_JOB_H_
#define CADRE_RENDEZVOUS_JOB_JOB_H_

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
#include "rendezvous/job/connections.h"
#include "rendezvous/job/deadlines.h"
#include "rendezvous/job/live.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/context.h"

namespace cadre::job {

// What a job waits for in the cluster at a moment of the host's clock; empty: nothing.
using ClusterWaits = std::function<std::string(const state::Job& job, MonoTime at)>;

// What the cluster is to hear of jobs.
struct ForCluster {
  // Jobs that were submitted, or were once and have ended.
  std::vector<std::string> changed;
  // By job and node: launchers that were connected and given up: they may still run.
  std::vector<std::pair<std::string, std::string>> launchers_lost;
  // Jobs that want their nodes only together with others that they lack.
  std::vector<std::string> gives_back;
};

class Job {
 public:
  // The job is in the state, and stays there as long as this.
  Job(std::string name, step::Context* context, const ClusterWaits* cluster_waits,
      ForCluster* for_cluster);
  Job(const Job&) = delete;

  View view() const { return {state_, live_, context_}; }

  // The server began with the job in its state.
  void Restore();
  // Nodes without a stream have a whole lease to come back: nobody could before.
  void AwaitAbsent();

  // A stream's first message. `message` is valid, and its launcher the cluster's if it has to be.
  void Join(StreamId stream, const v1::NodeMessage& message);
  // A node with the same name came with another spec.
  void Refused(const std::string& why);
  // A later message.
  void Said(const std::string& node, const v1::NodeMessage& message);
  void StreamClosed(const std::string& node);
  void StoreCalled(const keyspace::Asker& asker, const v1::StoreRequest& request);
  void CallDropped(CallId call);
  // `cause`: CANCELLED or PREEMPTED. `at_once`: who still stops does so without the rest of the
  // grace, which a server that begins anew forgets.
  void Cancel(const std::string& reason, int signal, v1::FailureCause cause, bool at_once);
  // It has one more node of the cluster.
  void Granted();
  // The job's launcher there ended unasked.
  void LauncherEnded(const std::string& node, const std::string& how);
  // The job has never begun and cannot: now (`try_later`), or ever.
  void CannotBegin(const std::string& why, bool try_later);
  // Nodes whose leases are over are lost.
  void EndLeases();
  // Decides all that follows from what happened and from time, and says what has changed.
  void Advance();
  // Something happened after which it is to be advanced. `changed`: what its nodes are shown has.
  void Touch(bool changed);

 private:
  // membership.cc: nodes come, go and are lost.
  bool MayJoin(StreamId stream, const v1::Join& join);
  void Admit(StreamId stream, const v1::NodeMessage& message);
  void Resume(StreamId stream, const v1::NodeMessage& message);
  void Attach(StreamId stream, const v1::Join& join);
  void OldWorkersStopped(const std::string& node, const v1::NodeStopped& stopped);
  // SIGKILL does not end a worker there, as the failure says: the generation ends without the node,
  // which takes part in none until it has stopped. One of the cluster is given up for another.
  void NodeRemains(v1::Failure failure);
  // Takes the node out of the job and, where its workers are missed, stops the others.
  void RemoveNode(const std::string& node, v1::FailureCause cause, v1::NodeRemoved::How how,
                  const std::string& reason, absl::Status close);

  // generation.cc: generations form, run, stop and end. Each returns whether something changed.
  bool AdvancePhase();
  bool AdvanceGathering();
  bool AdvanceRunning();
  bool AdvanceStopping();
  void Form(const FormationDecision& decision);
  // Stops the running generation, or corrects why it is stopped.
  void OrderStop(const std::string& reason, const std::optional<v1::Failure>& root_cause);
  void RestartOrEnd();
  void End(v1::JobPhase outcome, int exit_status, const std::string& message,
           const std::optional<v1::Failure>& root_cause);

  // worker_events.cc: nodes tell of their workers.
  void GenerationSaid(const std::string& node, const v1::NodeMessage& message);
  void WorkerStarted(const saved::Member& member, const v1::WorkerStarted& started);
  void WorkerExited(const saved::Member& member, const v1::WorkerExited& exited);
  void WorkerGaveUp(const saved::Member& member, const v1::WorkerGaveUp& gave_up);
  void NodeStopped(const saved::Member& member, const v1::NodeStopped& stopped);
  void EvidenceCame(const saved::Member& member, const v1::NodeEvidence& evidence);
  void FailWorker(const v1::Failure& failure);
  void EndInquiry();
  void EndLook();
  // Of the victims, which no rank explains that failed for a reason of its own.
  void FailVictims(const std::vector<v1::RankEvidence>& others);
  bool AdvanceSuspicion();

  const std::string name_;
  step::Context& context_;
  const state::Job& state_;
  const ClusterWaits& cluster_waits_;
  ForCluster& for_cluster_;
  Live live_;
  Outbox out_;
};

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_JOB_H_
