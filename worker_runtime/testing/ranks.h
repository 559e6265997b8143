// Runs a function as each rank of a world inside one process, with a communicator.
#ifndef CADRE_WORKER_RUNTIME_TESTING_RANKS_H_
#define CADRE_WORKER_RUNTIME_TESTING_RANKS_H_

#include <chrono>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/worker.h"

namespace cadre::testing {

// A backend's connect function: ConnectSockets, ConnectSharedMemory and the like.
using ConnectFunction =
    std::function<Result<std::unique_ptr<Communicator>>(Worker&, const CommunicatorOptions&)>;

// Runs one thread per rank; returns when all have returned. A rank that cannot connect fails the
// test.
void OnEachRank(const ConnectFunction& connect, int world_size,
                const std::function<void(Communicator&)>& body,
                std::chrono::nanoseconds timeout = std::chrono::seconds(30));

}  // namespace cadre::testing

#endif  // CADRE_WORKER_RUNTIME_TESTING_RANKS_H_
