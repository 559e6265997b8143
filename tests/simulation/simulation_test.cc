// Thousands of histories keep every promise; mistakes made on purpose are found.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/run.h"

namespace cadre::simulation {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kHistories = 10000;
// A mistake is found within so many.
constexpr uint64_t kHistoriesOfMutant = 2000;
constexpr uint64_t kHistoriesRunTwice = 200;

TEST(SimulationTest, EveryHistoryKeepsThePromises) {
  RunOptions options;
  options.histories = kHistories;
  const RunReport report = RunMany(options);
  ASSERT_FALSE(report.broken_seed.has_value()) << report.story;
  EXPECT_EQ(report.histories, kHistories);
  // Histories in which nothing happens would show little.
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

// Three of a job of 2 to 4 nodes run, one dies: the two that are left form the next generation at
// once. The settle window is far longer than the whole history.
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
  // 30 s until three nodes settled, a moment, and at most 20 s of work each time.
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
}  // namespace cadre::simulation
