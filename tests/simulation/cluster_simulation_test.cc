// The cluster's queue with the agents' real decisions, in many histories with faults. By hand:
// CADRE_CLUSTER_HISTORIES=100000, CADRE_CLUSTER_SEED=N for one with its events.
#include <stdlib.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/simulation/cluster_history.h"

namespace cadre::simulation {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

std::string Story(uint64_t seed, ClusterMutation mutation) {
  const ClusterResult result = RunClusterHistory(seed, mutation, true);
  return absl::StrCat("seed ", seed, ": ", result.broken, "\n", absl::StrJoin(result.lines, "\n"));
}

// The first seed whose history breaks a promise; 0: none of so many does.
uint64_t FirstBroken(ClusterMutation mutation, uint64_t histories) {
  for (uint64_t seed = 1; seed <= histories; ++seed) {
    if (!RunClusterHistory(seed, mutation, false).broken.empty()) return seed;
  }
  return 0;
}

TEST(ClusterSimulationTest, EveryHistoryKeepsThePromises) {
  const uint64_t one = FromEnvironment("CADRE_CLUSTER_SEED", 0);
  if (one != 0) {
    printf("%s\n", Story(one, ClusterMutation::kNone).c_str());
    return;
  }
  const uint64_t histories = FromEnvironment("CADRE_CLUSTER_HISTORIES", 300);
  uint64_t events = 0;
  int succeeded = 0, failed = 0, cancelled = 0, agents_lost = 0;
  for (uint64_t seed = 1; seed <= histories; ++seed) {
    const ClusterResult result = RunClusterHistory(seed, ClusterMutation::kNone, false);
    ASSERT_EQ(result.broken, "") << Story(seed, ClusterMutation::kNone);
    events += result.events;
    succeeded += result.succeeded;
    failed += result.failed;
    cancelled += result.cancelled;
    agents_lost += result.agents_lost;
  }
  printf("%s\n", absl::StrCat(histories, " histories, ", events, " events: ", succeeded,
                              " jobs succeeded, ", failed, " failed, ", cancelled, " cancelled; ",
                              agents_lost, " agents killed")
                     .c_str());
  // It is about something.
  EXPECT_GT(succeeded, failed);
  EXPECT_GT(failed, 0);
  EXPECT_GT(cancelled, 0);
  EXPECT_GT(agents_lost, 0);
}

TEST(ClusterSimulationTest, ASeedIsAHistory) {
  const ClusterResult first = RunClusterHistory(7, ClusterMutation::kNone, false);
  const ClusterResult second = RunClusterHistory(7, ClusterMutation::kNone, true);
  EXPECT_EQ(first.hash, second.hash);
  EXPECT_EQ(first.events, second.events);
  EXPECT_NE(first.hash, RunClusterHistory(8, ClusterMutation::kNone, false).hash);
}

TEST(ClusterSimulationTest, MistakesOnPurposeAreFound) {
  EXPECT_NE(FirstBroken(ClusterMutation::kForgetParts, 300), 0u);
  EXPECT_NE(FirstBroken(ClusterMutation::kDropStops, 300), 0u);
  EXPECT_NE(FirstBroken(ClusterMutation::kLeaveLaunchers, 300), 0u);
}

}  // namespace
}  // namespace cadre::simulation
