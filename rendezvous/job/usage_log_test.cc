#include "rendezvous/job/usage_log.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::job {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::NanSensitiveFloatEq;

constexpr int64_t kSecond = 1000000;

v1::NodeUsage Busy(float cpu, uint32_t gpus = 0, float gpu = 0) {
  v1::NodeUsage usage;
  usage.set_cpu(cpu);
  usage.set_memory_used(3 << 20);
  usage.set_memory_total(4 << 20);
  usage.set_gpus(gpus);
  usage.set_gpu(gpu);
  return usage;
}

TEST(UsageLogTest, OneSampleInTenSeconds_AndNoCurveWhereNoGpuIs) {
  UsageLog log;
  for (int second = 0; second <= 30; second += 3) log.Note("a", Busy(0.5), second * kSecond);
  const v1::JobUsage all = log.All();
  ASSERT_EQ(all.nodes_size(), 1);
  EXPECT_EQ(all.nodes(0).node(), "a");
  EXPECT_THAT(all.nodes(0).at_us(), ElementsAre(0, 12 * kSecond, 24 * kSecond));
  EXPECT_THAT(all.nodes(0).memory(), ElementsAre(0.75f, 0.75f, 0.75f));
  EXPECT_THAT(all.nodes(0).gpu(), IsEmpty());
}

TEST(UsageLogTest, AGpuThatWasNotToldOfAtTimes) {
  UsageLog log;
  log.Note("a", Busy(0), 0);
  log.Note("a", Busy(0, 1, 0.25f), 10 * kSecond);
  log.Note("a", Busy(0), 20 * kSecond);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(log.All().nodes(0).gpu(),
              ElementsAre(NanSensitiveFloatEq(nan), 0.25f, NanSensitiveFloatEq(nan)));
}

TEST(UsageLogTest, NumbersThatCannotBe_AreNotShown) {
  UsageLog log;
  log.Note("a", Busy(std::numeric_limits<float>::quiet_NaN()), 0);
  v1::NodeUsage usage = Busy(7);
  usage.set_memory_used(std::numeric_limits<uint64_t>::max());
  log.Note("a", usage, 10 * kSecond);
  usage.set_memory_total(0);
  log.Note("a", usage, 20 * kSecond);
  EXPECT_THAT(log.All().nodes(0).cpu(), ElementsAre(0, 1, 1));
  EXPECT_THAT(log.All().nodes(0).memory(), ElementsAre(0.75f, 1, 0));
}

TEST(UsageLogTest, ALongJobAndALargeOne_KeepABoundedNumberThatReachesTheEnd) {
  UsageLog longer;
  for (int64_t i = 0; i < 100000; ++i) longer.Note("a", Busy(0.5, 1, 0.5), 10 * i * kSecond);
  const v1::NodeUsageHistory history = longer.All().nodes(0);
  EXPECT_LE(history.at_us_size(), kMaxUsageSamples);
  EXPECT_GT(history.at_us_size(), kMaxUsageSamples / 3);
  EXPECT_EQ(history.gpu_size(), history.at_us_size());
  EXPECT_EQ(history.cpu_size(), history.at_us_size());
  EXPECT_GT(history.at_us(history.at_us_size() - 1), 990000 * kSecond);

  UsageLog larger;
  for (int64_t i = 0; i < 100; ++i) {
    for (int node = 0; node < 2000; ++node) {
      larger.Note("n" + std::to_string(node), Busy(0.5), 10 * i * kSecond);
    }
  }
  size_t samples = 0;
  const v1::JobUsage all = larger.All();
  for (const v1::NodeUsageHistory& one : all.nodes()) {
    samples += static_cast<size_t>(one.at_us_size());
  }
  EXPECT_EQ(all.nodes_size(), kMaxNodesWithUsage);
  EXPECT_LE(samples, kMaxUsageSamplesOfJob);
  EXPECT_GT(samples, kMaxUsageSamplesOfJob / 4);
  larger.End();
  samples = 0;
  const v1::JobUsage ended = larger.All();
  for (const v1::NodeUsageHistory& one : ended.nodes()) {
    samples += static_cast<size_t>(one.at_us_size());
  }
  EXPECT_LE(samples, kMaxUsageSamplesOfEnded);
  EXPECT_GE(samples, kMaxNodesWithUsage);
}

}  // namespace
}  // namespace cadre::job
