// Tests a job of 100,000 ranks.
#include "rendezvous/testing/large_job.h"

#include "gtest/gtest.h"

namespace cadre {
namespace {

constexpr uint32_t kNodes = 12500;
constexpr uint32_t kSlots = 8;
constexpr uint32_t kLost = 4711;

TEST(LargeJobTest, AHundredThousandRanksLoseANodeAndGoOn) {
  LargeJob job(kNodes, kSlots);
  job.Join();
  EXPECT_EQ(job.Status().phase(), v1::RUNNING);
  EXPECT_EQ(job.Status().world_size(), kNodes * kSlots);
  ASSERT_TRUE(job.core().CheckInvariants().ok()) << job.core().CheckInvariants();
  std::vector<v1::Assign> before;
  for (uint32_t node = 0; node < kNodes; ++node) {
    ASSERT_TRUE(job.assigned(node).has_value()) << node;
    before.push_back(*job.assigned(node));
  }
  job.StartWorkers();
  EXPECT_EQ(job.Status().workers_running(), kNodes * kSlots);
  EXPECT_EQ(job.Status().waiting_for(), "");

  job.LoseNode(kLost);
  EXPECT_EQ(job.Status().phase(), v1::STOPPING);
  job.StopWorkers();
  const v1::JobStatus again = job.Status();
  EXPECT_EQ(again.phase(), v1::RUNNING);
  EXPECT_EQ(again.generation(), 2u);
  EXPECT_EQ(again.restarts(), 0u);
  EXPECT_EQ(again.world_size(), (kNodes - 1) * kSlots);
  ASSERT_TRUE(job.core().CheckInvariants().ok()) << job.core().CheckInvariants();
  // Every node keeps its rank if it can: all except the one that fills the gap.
  uint32_t moved = 0;
  for (uint32_t node = 0; node < kNodes; ++node) {
    if (node == kLost) continue;
    ASSERT_TRUE(job.assigned(node).has_value()) << node;
    moved += job.assigned(node)->node_rank() != before[node].node_rank();
  }
  EXPECT_LE(moved, 1u);

  job.StartWorkers();
  job.Succeed();
  EXPECT_EQ(job.Status().phase(), v1::SUCCEEDED);
  ASSERT_TRUE(job.core().CheckInvariants().ok()) << job.core().CheckInvariants();
  Core replayed{CoreConfig()};
  for (const v1::Record& record : job.records()) replayed.Apply(record);
  EXPECT_TRUE(replayed.DebugString() == job.core().DebugString());
}

TEST(LargeJobTest, NodesOfALargeJobAreToldLittle) {
  LargeJob job(kNodes, kSlots);
  job.Join();
  job.StartWorkers();
  // A Welcome, an Assign, and a few reports of the others' progress.
  EXPECT_LE(job.messages(), kNodes * 6u);
}

}  // namespace

}  // namespace cadre
