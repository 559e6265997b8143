// How a generation of a job goes: the deadlines of the job's phases, and the conditions on which
// Job decides (Job::AdvancePhase() and what it calls, also in generation.cc). Pure. All times are
// now() of the lease clock.
#ifndef CADRE_RENDEZVOUS_JOB_GENERATION_H_
#define CADRE_RENDEZVOUS_JOB_GENERATION_H_

#include <string>
#include <vector>

#include "base/time.h"
#include "rendezvous/job/formation_decision.h"
#include "rendezvous/job/volatile_state.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/context.h"

namespace cadre::job {

// When the job has taken its whole time (timeouts.total), or its deadline in the queue's options
// passes.
MonoTime TotalDeadline(const JobView& view);
// When the workers of the generation are warned of that; Never() if they are not, or were.
MonoTime WarningDeadline(const JobView& view);
MonoTime StartDeadline(const JobView& view);
MonoTime StopDeadline(const JobView& view);
// When to ask which newly started worker is absent; Never() if no worker waits for others.
MonoTime AbsenceDeadline(const JobView& view);
// The earliest deadline that applies in the job's phase.
MonoTime PhaseDeadline(const JobView& view);

bool AllStarted(const state::Generation& generation);
// Whether the user, a scheduler or timeouts.total has ended the generation; then nothing changes
// the reason.
bool HasDecisiveCause(const state::Generation& generation);
// Whether workers that went on in their processes have shown no progress since.
bool AwaitsProgressAfterRejoin(const JobView& view);
// Whether the generation could grow. Once workers have succeeded, more of them would only repeat
// their work.
bool CanGrow(const JobView& view);
// Whether its workers are asked to save once more nodes wait for the next generation.
bool MayAskForCheckpoint(const state::Job& job);
// Whether more nodes wait for the next generation, which its workers are to begin by saving.
bool WantsCheckpoint(const JobView& view);

// Whether the job has begun and holds too few nodes of the cluster to run: it waits for more
// without a timeout, as in the queue. False if it is kept off a node for good, because there may
// never be enough others.
bool ClusterOwesNodes(const JobView& view);

Gathering GatheringOf(const JobView& view);
// Whether the list of expected nodes is reliable. A launcher's environment names all nodes that
// come. For a submitted job the list is from the start of its first launcher; nodes are added and
// replaced later.
bool KnowsExpectedNodes(const state::Job& job);

std::vector<std::string> ReadyNodes(const JobView& view);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_GENERATION_H_
