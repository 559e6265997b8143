#include "worker_runtime/testing/ranks.h"

#include <chrono>

#include "base/status_matchers.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::testing {

void OnEachRank(const ConnectFunction& connect, int world_size,
                const std::function<void(Communicator&)>& body, std::chrono::nanoseconds timeout) {
  InProcessWorkers workers(world_size);
  workers.Run([&](Worker& worker) {
    CommunicatorOptions options;
    options.timeout = timeout;
    auto communicator = connect(worker, options);
    ASSERT_OK(communicator);
    body(**communicator);
  });
}

}  // namespace cadre::testing
