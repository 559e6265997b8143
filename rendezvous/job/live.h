// The volatile part of a job.
#ifndef CADRE_RENDEZVOUS_JOB_LIVE_H_
#define CADRE_RENDEZVOUS_JOB_LIVE_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "proto/failure.pb.h"
#include "rendezvous/job/connections.h"
#include "rendezvous/job/inquiry.h"
#include "rendezvous/job/progress_log.h"
#include "rendezvous/job/store.h"
#include "rendezvous/job/usage_log.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/context.h"

namespace cadre::job {

// A worker gave the generation up, and nobody knows why. That is a failure from `believed_at` on:
// the end of another one that caused it may lie unread, after this server or a connection stood
// still.
struct GivenUp {
  v1::Failure failure;
  MonoTime believed_at;
};

// Workers ended because they lost another one, whose own end, the cause, has not been told: a
// Python program closes its connections before it has printed its exception, cleaned up and ended.
// They are a failure from `believed_at` on.
struct Victims {
  std::vector<v1::Failure> failures;  // in the order in which they came, one a rank
  MonoTime believed_at;
};

// Where the ranks were when one had shown no progress for several times as long as usual. Nothing
// follows from it but what people are told, until a step comes.
struct Standstill {
  std::vector<v1::RankEvidence> ranks;
  std::string text;
  MonoTime at;
};

// What suggests that a worker of the generation hangs or is lost.
struct Suspicion {
  std::optional<Inquiry> inquiry;
  // Beside it, so that neither holds the other up: a look because of a standstill, what it found,
  // and before when there is no other: all nodes notice the same one.
  std::optional<Inquiry> look;
  std::optional<Standstill> standstill;
  MonoTime looks_again_at;
  Victims victims;
  std::optional<GivenUp> given_up;
  // The generation in which it was asked who is absent.
  uint64_t asked_for_absent = 0;
};

// Its nodes are to be shown its status again.
struct PendingPush {
  bool changed = false;
  // So did how far its workers are, which is shown less often.
  bool progressed = false;
  // On the host's clock.
  MonoTime last = MonoTime::FromMicros(std::numeric_limits<int64_t>::min() / 2);
};

struct Live {
  Live(step::Context* context, const state::Job& job)
      : connections(*context), store(context, job, connections) {}

  Connections connections;
  Store store;
  Suspicion suspicion;
  PendingPush push;
  ProgressLog progress;
  UsageLog usage;
  // When the nodes were told last to start or to stop.
  MonoTime ordered_at;
  // The generation whose workers were asked to save, because more nodes wait, or may have been, by
  // the server before this one. 0: none.
  uint64_t checkpoint_asked = 0;
  // The last node that came with another spec, for those who wait for it.
  std::string refusal;
  // When it got its last node of the cluster.
  MonoTime granted_at = MonoTime::FromMicros(std::numeric_limits<int64_t>::min() / 2);
  // It has waited long enough for nodes that the cluster owes it to give back the others.
  bool gives_back = false;
  // It ended in this life of the server.
  bool ended_here = false;
  // Something happened after which the job is to be advanced.
  bool touched = false;
  // When it is to be advanced though nothing happens.
  MonoTime deadline = MonoTime::Never();
};

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_LIVE_H_
