// How long a job's phases may last, and what its decisions go by. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_DEADLINES_H_
#define CADRE_RENDEZVOUS_JOB_DEADLINES_H_

#include <string>
#include <vector>

#include "base/time.h"
#include "rendezvous/job/formation.h"
#include "rendezvous/job/live.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/context.h"

namespace cadre::job {

// A job as functions look at it.
struct View {
  const state::Job& job;
  const Live& live;
  const step::Context& context;
};

MonoTime TotalDeadline(const View& view);
MonoTime StartDeadline(const View& view);
MonoTime StopDeadline(const View& view);
// When it is asked who of those that were started anew has not come; Never() where nobody waits.
MonoTime AbsenceDeadline(const View& view);
// The first of those that count in its phase.
MonoTime PhaseDeadline(const View& view);

bool AllStarted(const state::Generation& generation);
// The user, a scheduler or the clock has ended the generation: nothing changes the reason.
bool IsSettled(const state::Generation& generation);
// Workers that went on in their processes have had no progress since.
bool AwaitsOthers(const View& view);
// Once workers have finished their work, more of them would only do it again.
bool CanGrow(const View& view);
// Its workers are asked to save where more nodes wait for the next generation.
bool MayAskForCheckpoint(const state::Job& job);
// More nodes wait for the next generation, which its workers are to begin.
bool WantsCheckpoint(const View& view);

// It has begun and the cluster has fewer nodes for it than it needs: it waits for those as it did
// in the queue, since nobody could come. Not where it is kept off a node for good.
bool IsOwedNodes(const View& view);

Gathering GatheringOf(const View& view);
// The environment named the nodes that come. The cluster's list, of a submitted job, is of the
// moment at which its first launcher was started: nodes are added and replaced later.
bool KnowsWhoComes(const state::Job& job);

std::vector<std::string> ReadyNodes(const View& view);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_DEADLINES_H_
