#include "rendezvous/cluster/job_queue.h"

#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::cluster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

MonoTime Second(int s) { return MonoTime::FromMicros(s * int64_t{1000000}); }

TEST(RestsTest, ANodeRestsForOneJobAndForLongerEachTime) {
  StartBackoffs backed_off;
  EXPECT_EQ(backed_off.NextDeadline(), MonoTime::Never());
  EXPECT_FALSE(backed_off.Expire(Second(1000)));
  const int seconds[] = {1, 2, 4, 8, 16, 32, 60, 60};
  for (uint32_t failed = 1; failed <= 8; ++failed) {
    backed_off.Add(7, "n0", failed, Second(100));
    backed_off.Add(8, "n1", 1000, Second(100));
    EXPECT_THAT(backed_off.ByJob()[7], ElementsAre("n0"));
    EXPECT_THAT(backed_off.ByJob()[8], ElementsAre("n1"));
    const MonoTime end = Second(100 + seconds[failed - 1]);
    EXPECT_EQ(backed_off.NextDeadline(), end);
    EXPECT_FALSE(backed_off.Expire(end + -absl::Microseconds(1)));
    EXPECT_TRUE(backed_off.Expire(end));
    EXPECT_THAT(backed_off.ByJob()[7], IsEmpty());
    backed_off.Expire(Second(200));
  }
}

TEST(JobQueueTest, TheSchedulerSeesWhatNodesHaveAndWhatJobsHoldOfIt) {
  state::State state;
  saved::ClusterNode& node = state.cluster.nodes["n0"];
  node.set_cpus(8);
  node.set_gpus(2);
  node.set_memory(64);
  v1::Part* part = state.cluster.allocations[1].mutable_part();
  part->set_job("j");
  part->set_node("n0");
  part->set_cpus(4);
  part->set_gpus(1);
  part->set_memory(9);
  const Agents agents(absl::Seconds(10));
  const std::vector<ScheduleNode> nodes = NodesToSchedule(state, agents);
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_EQ(std::make_tuple(nodes[0].cpus, nodes[0].gpus, nodes[0].memory),
            std::make_tuple(8u, 2u, 64u));
  const Share share = HeldShares(state, agents).at("j").at(0).share;
  EXPECT_EQ(std::make_tuple(share.cpus, share.gpus, share.memory), std::make_tuple(4u, 1u, 9u));
}

}  // namespace

}  // namespace cadre::cluster
