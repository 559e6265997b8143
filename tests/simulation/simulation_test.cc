// Thousands of histories, of jobs and of a cluster, keep every invariant, and deliberate mistakes
// are found.
#include <stdlib.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/cluster_history.h"
#include "tests/simulation/history.h"

namespace cadre::simulation {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kHistories = 10000;
// A deliberate mistake is found within so many histories.
constexpr uint64_t kHistoriesOfMutant = 2000;
constexpr uint64_t kHistoriesRunTwice = 200;

// Fault (network): Packets are delayed by 200 ms and more, or lost (simulated) -> The job is
// slower; no node is lost as long as renewals arrive within the lease
// Fault (network): A node is cut off, both ways or one way, and reconnects late (simulated) -> It
// is lost after its lease; its old workers are told to stop, and their store calls fail with
// ABORTED
// Fault (network): Messages of an old stream arrive after those of the new one (simulated) -> They
// are ignored
// Fault (network): Clocks of the machines differ and drift by 1 % (simulated) -> Nothing happens,
// because clocks of two machines are never compared
// Fault (network): Two or more faults of network, disk, clocks, server, agents and workers happen
// at once (simulated) -> The promises I1 to I10 hold, and the job completes or says why not
TEST(SimulationTest, EveryHistoryKeepsThePromises) {
  RunOptions options;
  options.histories = kHistories;
  const RunReport report = RunMany(options);
  ASSERT_FALSE(report.broken_seed.has_value()) << report.story;
  EXPECT_EQ(report.histories, kHistories);
  // Histories in which nothing happens would prove little.
  Tally tally = report.tally;
  RecordProperty("events", static_cast<int>(report.events));
  EXPECT_GT(tally.outcomes[v1::SUCCEEDED], kHistories / 4);
  EXPECT_GT(tally.outcomes[v1::FAILED], kHistories / 10);
  EXPECT_GT(tally.outcomes[v1::CANCELLED_PHASE], kHistories / 200);
  EXPECT_GT(tally.generations, kHistories);
  EXPECT_GT(tally.restarts, kHistories / 10);
  EXPECT_GT(tally.degraded_rounds, kHistories / 50);
  EXPECT_GT(tally.nodes_lost, kHistories / 10);
  EXPECT_GT(tally.server_starts, kHistories + kHistories / 10);
  EXPECT_GT(tally.store_answers, kHistories);
  EXPECT_GT(tally.adoptions, kHistories / 200);
}

TEST(SimulationTest, TheSameSeedGivesTheSameHistory) {
  for (uint64_t seed = 1; seed <= kHistoriesRunTwice; ++seed) {
    const HistoryResult once = RunHistory(MakePlan(seed), Mutation::kNone, false);
    const HistoryResult again = RunHistory(MakePlan(seed), Mutation::kNone, true);
    ASSERT_EQ(once.hash, again.hash) << seed;
    ASSERT_EQ(once.events, again.events) << seed;
  }
}

// Three nodes of a job of 2 to 4 nodes run and one dies: the two that are left form the next
// generation at once. The settle window is far longer than the whole history.
TEST(SimulationTest, ADegradedRoundDoesNotWaitForTheSettleWindow) {
  Plan plan;
  plan.seed = 1;
  v1::JobSpec& spec = plan.jobs.emplace_back();
  spec.set_name("job0");
  spec.add_command("./train");
  spec.mutable_nodes()->set_min(2);
  spec.mutable_nodes()->set_max(4);
  spec.mutable_rendezvous()->mutable_settle()->set_seconds(30);
  spec.mutable_timeouts()->mutable_stop_grace()->set_seconds(1);
  plan.nodes.resize(3);
  plan.worker_runs_at_most = absl::Seconds(20);
  plan.orphan_timeout = absl::Seconds(60);
  plan.trouble = absl::Seconds(31);
  plan.compact_after = 1000;
  plan.odds.delay_min = absl::Microseconds(50);
  plan.odds.delay_max = absl::Microseconds(100);
  FaultAt off;
  off.at = MonoTime() + absl::Milliseconds(30050);
  off.fault = Fault::kAgentKilled;
  off.node = 2;
  plan.faults = {off};
  const HistoryResult result = RunHistory(plan, Mutation::kNone, true);
  EXPECT_EQ(result.broken, "");
  EXPECT_EQ(result.tally.generations, 2u);
  EXPECT_EQ(result.tally.degraded_rounds, 1u);
  EXPECT_EQ(result.tally.outcomes.at(v1::SUCCEEDED), 1u);
  // It takes 30 s until three nodes have settled, a moment, and at most 20 s of work each time.
  EXPECT_LT(result.lasted, absl::Seconds(30 + 20 + 1 + 3));
}

class MutationTest : public testing::TestWithParam<Mutation> {};

TEST_P(MutationTest, IsFound) {
  RunOptions options;
  options.histories = kHistoriesOfMutant;
  options.mutation = GetParam();
  const RunReport report = RunMany(options);
  ASSERT_TRUE(report.broken_seed.has_value());
  RecordProperty("found_by_seed", static_cast<int>(*report.broken_seed));
  EXPECT_THAT(report.story, HasSubstr("again: bazel run //tests/simulation -- --seed="));
}

INSTANTIATE_TEST_SUITE_P(OnPurpose, MutationTest,
                         testing::Values(Mutation::kSkipFence, Mutation::kPersistAfterSending,
                                         Mutation::kReuseGeneration, Mutation::kSkipIncarnation,
                                         Mutation::kHideFullDisk),
                         [](const testing::TestParamInfo<Mutation>& info) {
                           return NameOf(info.param);
                         });

}  // namespace

// The cluster's queue with the agents' real cores, in many histories with faults. By hand:
// CADRE_CLUSTER_HISTORIES=100000 and CADRE_CLUSTER_FIRST_SEED=N, or CADRE_CLUSTER_SEED=N for one
// history with its events.

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

// Returns the first seed whose history breaks an invariant, or 0 if none of `histories` does.
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
  const uint64_t first = FromEnvironment("CADRE_CLUSTER_FIRST_SEED", 1);
  uint64_t events = 0;
  ClusterResult sum;
  for (uint64_t seed = first; seed < first + histories; ++seed) {
    const ClusterResult result = RunClusterHistory(seed, ClusterMutation::kNone, false);
    ASSERT_EQ(result.broken, "") << Story(seed, ClusterMutation::kNone);
    events += result.events;
    sum.succeeded += result.succeeded;
    sum.failed += result.failed;
    sum.cancelled += result.cancelled;
    sum.agents_lost += result.agents_lost;
    sum.batch_jobs += result.batch_jobs;
    sum.requeued += result.requeued;
    sum.steps += result.steps;
    sum.steps_waited += result.steps_waited;
    sum.steps_outlived += result.steps_outlived;
  }
  printf("%s\n", absl::StrCat(histories, " histories, ", events, " events: ", sum.succeeded,
                              " jobs and steps succeeded, ", sum.failed, " failed, ", sum.cancelled,
                              " cancelled; ", sum.agents_lost, " agents killed; ", sum.batch_jobs,
                              " batch jobs with ", sum.steps, " steps, of which ", sum.steps_waited,
                              " waited and ", sum.steps_outlived, " outlived their nodes; ",
                              sum.requeued, " times a job was put back into the queue")
                     .c_str());
  // The histories must contain enough of each outcome.
  EXPECT_GT(sum.succeeded, sum.failed);
  EXPECT_GT(sum.failed, 0);
  EXPECT_GT(sum.cancelled, 0);
  EXPECT_GT(sum.agents_lost, 0);
  EXPECT_GT(sum.batch_jobs, 0);
  EXPECT_GT(sum.requeued, 0);
  EXPECT_GT(sum.steps_waited, sum.steps / 20);
  EXPECT_GT(sum.steps_outlived, 0);
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
  EXPECT_NE(FirstBroken(ClusterMutation::kForgetBatchJobs, 300), 0u);
}

}  // namespace
}  // namespace cadre::simulation
