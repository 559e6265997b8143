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

// Of a rank, for the others.
std::string AddressOn(Network network, int rank);
// "", or what goes before a command that is to run where `rank` is.
std::string CommandPrefix(Network network, int rank);
// By which ranks reach each other.
std::string InterfaceOf(Network network);

// Makes the nodes of kVeth, for this process and its children. One thread, once.
Status MakeNodes(int nodes);

// Runs `rank` as each rank, in a process of its own where it belongs; results[i], in rank 0, is
// what measurement i gives. Empty when a rank failed, which has said why. One thread.
std::vector<double> RunRanks(Network network, int ranks, size_t measurements,
                             const std::function<Status(Worker&, double* results)>& rank);

}  // namespace cadre

#endif  // CADRE_BENCH_COLLECTIVES_RANKS_ON_NETWORK_H_
