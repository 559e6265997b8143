#include "rendezvous/cluster/start_estimate.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace cadre::cluster {
namespace {

const MonoTime kNow = MonoTime::FromMicros(1000000000);

ScheduleNode Node(const std::string& name) {
  ScheduleNode node;
  node.name = name;
  node.cpus = 4;
  return node;
}

// A job that takes whole nodes.
ScheduleJob Job(const std::string& name, uint64_t order, uint32_t nodes, absl::Duration limit) {
  ScheduleJob job;
  job.name = name;
  job.user = "alice";
  job.order = order;
  job.min = job.max = nodes;
  job.workers.set_kind(v1::WorkersPerNode::COUNT);
  job.workers.set_count(4);
  job.limit = limit;
  return job;
}

ScheduleJob Running(ScheduleJob job, const std::string& node, absl::Duration since) {
  job.held.push_back({node, Share{4, 4, 0, 0}});
  job.ends = kNow + -since + job.limit;
  return job;
}

TEST(StartEstimateTest, AJobBeginsAtTheLatestWhenThoseBeforeItHaveTakenAllOfTheirTime) {
  const auto ranges =
      EstimateStarts({Node("n0")},
                     {Running(Job("a", 1, 1, absl::Hours(2)), "n0", absl::Hours(1)),
                      Job("b", 2, 1, absl::Hours(3)), Job("c", 3, 1, absl::Hours(1))},
                     kNow, {});
  EXPECT_EQ(ranges.at("b").until, kNow + absl::Hours(1));
  EXPECT_EQ(ranges.at("c").until, kNow + absl::Hours(4));
  // Nobody knows how long they run.
  EXPECT_EQ(ranges.at("c").from, kNow);
}

TEST(StartEstimateTest, AtTheEarliestItBeginsWhenTheyEndAsUsual) {
  const auto ranges =
      EstimateStarts({Node("n0")},
                     {Running(Job("a", 1, 1, absl::Hours(9)), "n0", absl::Minutes(10)),
                      Job("b", 2, 1, absl::Hours(3)), Job("c", 3, 1, absl::Hours(1))},
                     kNow, {{"a", absl::Minutes(30)}, {"b", absl::Hours(1)}});
  EXPECT_EQ(ranges.at("b").from, kNow + absl::Minutes(20));
  EXPECT_EQ(ranges.at("c").from, kNow + absl::Minutes(80));
  EXPECT_EQ(ranges.at("b").until, kNow + absl::Minutes(530));
}

TEST(StartEstimateTest, BehindAJobWithoutALimitTheLatestTimeIsNotKnown) {
  const auto ranges =
      EstimateStarts({Node("n0")},
                     {Running(Job("a", 1, 1, absl::InfiniteDuration()), "n0", absl::Hours(1)),
                      Job("b", 2, 1, absl::Hours(3))},
                     kNow, {});
  EXPECT_EQ(ranges.at("b").from, kNow);
  EXPECT_EQ(ranges.at("b").until, MonoTime::Never());
}

TEST(StartEstimateTest, NothingIsKnownOfWhatCannotRun) {
  const auto ranges = EstimateStarts({Node("n0")}, {Job("a", 1, 2, absl::Hours(1))}, kNow, {});
  EXPECT_EQ(ranges.count("a"), 0u);
}

}  // namespace
}  // namespace cadre::cluster
