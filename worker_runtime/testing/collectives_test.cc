// Runs the collective suite on every CPU backend.
#include "worker_runtime/hierarchical/hierarchical_communicator.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/testing/collective_suite.h"

namespace cadre::testing {

const auto kCaseName = [](const auto& info) { return info.param.name; };

INSTANTIATE_TEST_SUITE_P(SharedMemory, CollectiveSuite,
                         ::testing::ValuesIn(AllRanksOf("SharedMemory",
                                                        shared_memory::ConnectSharedMemory, 1)),
                         kCaseName);
INSTANTIATE_TEST_SUITE_P(Sockets, CollectiveSuite,
                         ::testing::ValuesIn(AllRanksOf("Sockets", sockets::ConnectSockets, 1)),
                         kCaseName);
INSTANTIATE_TEST_SUITE_P(Hierarchical, CollectiveSuite,
                         ::testing::ValuesIn(AllRanksOf("Hierarchical",
                                                        hierarchical::ConnectHierarchical, 2)),
                         kCaseName);

}  // namespace cadre::testing
