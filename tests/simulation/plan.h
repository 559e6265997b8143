// The plan of one history, drawn from its seed. Swarm testing (Groce et al. 2012): each history has
// its own selection of faults, because a fault that is always present hides what others would show.
// Pure.
#ifndef CADRE_TESTS_SIMULATION_PLAN_H_
#define CADRE_TESTS_SIMULATION_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "proto/spec.pb.h"
#include "rendezvous/core/core.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

// Deliberate mistakes at the edge of the simulation, which show that the checks would find them.
enum class Mutation {
  kNone,
  // The server treats store requests of any generation as the current one's.
  kSkipFence,
  // Messages leave the server before its records are on the disk.
  kPersistAfterSending,
  // The number of the last generation is forgotten when the server restarts.
  kReuseGeneration,
  // A new life of an agent is treated as the life before.
  kSkipIncarnation,
  // The core does not learn that nothing can be saved.
  kHideFullDisk,
};

inline constexpr Mutation kMutations[] = {Mutation::kNone,
                                          Mutation::kSkipFence,
                                          Mutation::kPersistAfterSending,
                                          Mutation::kReuseGeneration,
                                          Mutation::kSkipIncarnation,
                                          Mutation::kHideFullDisk};

enum class Fault {
  kReset,    // a node's connection breaks; what was on the way may be lost
  kCutUp,    // nothing gets from a node to the server
  kCutDown,  // nothing gets from the server to a node
  kCutBoth,
  kClog,     // a node's messages stand still for a while, then all come
  kSwizzle,  // all nodes are clogged one after the other, and freed in another order
  kAgentKilled,
  kAgentPaused,
  kSupervisorKilled,
  kNodeOff,  // a whole machine is gone, and perhaps comes back
  kServerKilled,
  kServerPaused,
  kStateLost,  // the server is killed and its state directory is gone
  kDiskFull,
  kDiskFails,
  kUserCancels,
  kCtrlC,
  kCount,
};

struct FaultAt {
  MonoTime at;
  Fault fault = Fault::kReset;
  // The node, if the fault concerns one.
  int node = 0;
  absl::Duration lasts;
};

struct NodePlan {
  int job = 0;
  int slots = 1;
  int wanted_rank = -1;
  absl::Duration comes_after;
  Clock clock;
  // How long the workers may outlive their agent.
  absl::Duration adopt_timeout;
};

// Probabilities are in percent, unless noted.
struct Odds {
  absl::Duration delay_min;
  absl::Duration delay_max;
  // A packet is lost and sent again.
  double retransmit = 0;
  // Calls outside streams are lost, or arrive twice.
  double call_lost = 0;
  double call_twice = 0;
  // The server is killed while it saves: before, after, or between two messages.
  double crash_while_saving = 0;
  double worker_fails = 0;
  double worker_hangs = 0;
  double worker_ignores_sigterm = 0;
  double worker_cannot_start = 0;
  // A worker whose peer died fails too.
  double collateral = 0;
  // A process that was killed is started again.
  double comes_back = 0;
};

struct Plan {
  uint64_t seed = 0;
  std::vector<v1::JobSpec> jobs;
  std::vector<NodePlan> nodes;
  CoreConfig server;
  Clock server_clock;
  absl::Duration orphan_timeout;
  absl::Duration worker_runs_at_most;
  // The time after which the faults stop.
  absl::Duration trouble;
  std::vector<FaultAt> faults;
  Odds odds;
  // The state is compacted when it has grown by so many records.
  size_t compact_after = 0;

  bool Has(Fault fault) const;
  // No fault occurs in this history.
  bool faultless = false;
};

Plan MakePlan(uint64_t seed);

const char* NameOf(Fault fault);
const char* NameOf(Mutation mutation);

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_PLAN_H_
