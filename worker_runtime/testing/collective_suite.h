// The suite that every backend must pass: each collective against a float64
// reference, over sizes, types, operations and numbers of ranks.
//
//   INSTANTIATE_TEST_SUITE_P(Sockets, CollectiveSuite, AllRanksOf("sockets", ConnectSockets, 1));
#ifndef CADRE_WORKER_RUNTIME_TESTING_COLLECTIVE_SUITE_H_
#define CADRE_WORKER_RUNTIME_TESTING_COLLECTIVE_SUITE_H_

#include <functional>
#include <string>
#include <vector>

#include "cadre/communicator.h"
#include "gtest/gtest.h"
#include "worker_runtime/testing/ranks.h"

namespace cadre::testing {

struct SuiteCase {
  std::string name;
  ConnectFunction connect;
  int ranks;
  int nodes;
};

class CollectiveSuite : public ::testing::TestWithParam<SuiteCase> {
 protected:
  // Runs `body` as every rank, one thread each, with a communicator.
  void WithRanks(const std::function<void(Communicator&)>& body);
};

// Returns cases of 1 to 8 ranks on `nodes` nodes, or on one node per rank where there are fewer
// ranks.
std::vector<SuiteCase> AllRanksOf(const std::string& name, const ConnectFunction& connect,
                                  int nodes);

}  // namespace cadre::testing

#endif  // CADRE_WORKER_RUNTIME_TESTING_COLLECTIVE_SUITE_H_
