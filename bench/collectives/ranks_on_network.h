// Ranks as processes that reach each other over TCP only: over loopback, or each on a node of its
// own, a network namespace at the end of a veth pair.
#ifndef CADRE_BENCH_COLLECTIVES_RANKS_ON_NETWORK_H_
#define CADRE_BENCH_COLLECTIVES_RANKS_ON_NETWORK_H_

#include <functional>
#include <string>
#include <vector>

#include "bench/collectives/schedule.h"
#include "cadre/status.h"
#include "cadre/worker.h"

namespace cadre {

enum class Network { kLoopback, kVeth };

// The address under which other ranks reach this rank.
std::string AddressOn(Network network, int rank);
// The prefix of a command that is to run on the node of `rank`; may be empty.
std::string CommandPrefix(Network network, int rank);
// The network interface by which ranks reach each other.
std::string InterfaceOf(Network network);

// Makes the nodes of kVeth, for this process and its children. Call it once, from one thread.
Status MakeNodes(int nodes);

// Runs `rank` for each rank, in its own process on its node. Returns rank 0's result of each
// measurement; empty if a rank failed, which has printed the reason. One thread.
std::vector<double> RunRanks(Network network, int ranks, size_t measurements,
                             const std::function<Status(Worker&, double* results)>& rank);

}  // namespace cadre

#endif  // CADRE_BENCH_COLLECTIVES_RANKS_ON_NETWORK_H_
