// What a job keeps in memory only: a restarted server begins without it, so nothing that must
// survive may be here. JobView is a job as the functions see it that decide and show. Plain values;
// times are now() of the lease clock unless stated otherwise.
#ifndef CADRE_RENDEZVOUS_JOB_VOLATILE_STATE_H_
#define CADRE_RENDEZVOUS_JOB_VOLATILE_STATE_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "proto/failure.pb.h"
#include "rendezvous/job/hang_diagnosis.h"
#include "rendezvous/job/job_store.h"
#include "rendezvous/job/node_connections.h"
#include "rendezvous/job/progress_and_usage.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/context.h"

namespace cadre::job {

// A worker gave the generation up for no known reason. That counts as a failure only from
// `fails_at` on: the report of another worker's end that caused it may still be unread if this
// server or a connection was delayed.
struct GivenUp {
  v1::Failure failure;
  MonoTime fails_at;
};

// Workers that ended because they lost another one, whose own end, the cause, has not been
// reported: a Python program closes its connections before it prints its exception, cleans up and
// ends. They count as a failure from `fails_at` on.
struct Victims {
  std::vector<v1::Failure> failures;  // in order of arrival, one per rank
  MonoTime fails_at;
};

// Where the ranks were when one had shown no progress for several times as long as usual. It is
// only shown to people, until the next step is reported.
struct Standstill {
  std::vector<v1::RankEvidence> ranks;
  std::string text;
  MonoTime at;
};

// Signs that a worker of the generation hangs or is lost.
struct Suspects {
  // All nodes are being asked where their workers are; the generation fails if a culprit is found.
  std::optional<HangDiagnosis> diagnosis;
  // A brief probe because of a standstill, separate so that neither delays the other; what the last
  // one found; and the time before which there is no other, since all nodes notice the same
  // standstill.
  std::optional<HangDiagnosis> probe;
  std::optional<Standstill> standstill;
  MonoTime next_probe_at;
  Victims victims;
  std::optional<GivenUp> given_up;
  // The generation in which all nodes were last asked which worker is absent.
  uint64_t asked_for_absent = 0;
};

// What the job's nodes have not been sent yet of its status.
struct PendingPush {
  bool changed = false;
  // The workers' progress changed, which is sent less often.
  bool progressed = false;
  // When the status was last sent; host time.
  MonoTime last = MonoTime::FromMicros(std::numeric_limits<int64_t>::min() / 2);
};

struct VolatileState {
  VolatileState(step::Context* context, const state::Job& job)
      : connections(*context), store(context, job, connections) {}

  NodeConnections connections;
  JobStore store;
  Suspects suspects;
  PendingPush push;
  ProgressLog progress;
  UsageLog usage;
  // When the nodes were last told to start or to stop.
  MonoTime ordered_at;
  // The generation whose workers were asked to save because more nodes wait, or may have been asked
  // by the server before a restart. 0 if none.
  uint64_t checkpoint_asked = 0;
  // The generation whose workers were warned that the job's time ends. 0 if none.
  uint64_t warned = 0;
  // Why the last node with a differing spec was rejected, shown to those who wait for it.
  std::string refusal;
  // When the job got its last node of the cluster.
  MonoTime granted_at = MonoTime::FromMicros(std::numeric_limits<int64_t>::min() / 2);
  // The job has waited so long for nodes that the cluster owes it that it gives back its others.
  bool gives_back = false;
  // The job ended since the server began.
  bool ended_here = false;
  // Something happened, so the job must be advanced.
  bool dirty = false;
  // When the job must be advanced though nothing happens.
  MonoTime deadline = MonoTime::Never();
};

// A job as functions see it that decide about it or show it.
struct JobView {
  const state::Job& job;
  const VolatileState& volatile_state;
  const step::Context& context;
};

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_VOLATILE_STATE_H_
