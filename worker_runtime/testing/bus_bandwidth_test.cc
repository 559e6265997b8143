#include "worker_runtime/testing/bus_bandwidth.h"

#include "gtest/gtest.h"

namespace cadre::testing {
namespace {

TEST(BusBandwidthTest, IsThatOfNcclTests) {
  constexpr size_t kBytes = 1000000;
  const absl::Duration duration = absl::Milliseconds(1);
  EXPECT_DOUBLE_EQ(BusBandwidth(Collective::kAllReduce, kBytes, duration, 4), 1.5e9);
  EXPECT_DOUBLE_EQ(BusBandwidth(Collective::kReduceScatter, kBytes, duration, 4), 0.75e9);
  EXPECT_DOUBLE_EQ(BusBandwidth(Collective::kAllGather, kBytes, duration, 4), 0.75e9);
  EXPECT_DOUBLE_EQ(BusBandwidth(Collective::kBroadcast, kBytes, duration, 4), 1e9);
  EXPECT_DOUBLE_EQ(BusBandwidth(Collective::kReduce, kBytes, duration, 4), 1e9);
  EXPECT_DOUBLE_EQ(BusBandwidth(Collective::kAllReduce, kBytes, duration, 1), 0);
}

}  // namespace
}  // namespace cadre::testing
