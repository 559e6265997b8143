// Every CPU backend through the same suite.
#include "worker_runtime/gloo/gloo_communicator.h"
#include "worker_runtime/hierarchical/hierarchical_communicator.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/testing/collective_suite.h"

namespace cadre::testing {

const auto kCaseName = [](const auto& info) { return info.param.name; };

INSTANTIATE_TEST_SUITE_P(SharedMemory, CollectiveSuite,
                         ::testing::ValuesIn(AllRanksOf("SharedMemory",
                                                        shared_memory::ConnectSharedMemory, 1)),
                         kCaseName);
INSTANTIATE_TEST_SUITE_P(Gloo, CollectiveSuite,
                         ::testing::ValuesIn(AllRanksOf("Gloo", gloo::ConnectGloo, 1)), kCaseName);
INSTANTIATE_TEST_SUITE_P(Hierarchical, CollectiveSuite,
                         ::testing::ValuesIn(AllRanksOf("Hierarchical",
                                                        hierarchical::ConnectHierarchical, 2)),
                         kCaseName);

}  // namespace cadre::testing
