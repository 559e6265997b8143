#include "agent/core/fence.h"

#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

constexpr MonoTime At(int64_t seconds) { return MonoTime::FromMicros(seconds * 1000000); }

TEST(Fence, WithoutStrictFencing_Never) {
  Fence fence(/*strict=*/false, MonoTime());
  fence.Connected(At(100));
  fence.Welcomed(absl::Seconds(10));
  EXPECT_EQ(fence.at(), MonoTime::Never());
  EXPECT_EQ(fence.NumberOfRenewal(At(103)), 0u);
}

TEST(Fence, CountsFromWhenTheAnsweredWasSent) {
  Fence fence(/*strict=*/true, MonoTime());
  fence.Connected(At(100));
  fence.Welcomed(absl::Seconds(10));
  EXPECT_EQ(fence.at(), At(108));
  const uint64_t first = fence.NumberOfRenewal(At(103)), second = fence.NumberOfRenewal(At(106));
  EXPECT_TRUE(fence.Answered(second));
  EXPECT_EQ(fence.at(), At(114));
  EXPECT_FALSE(fence.Answered(first)) << "an older one says nothing new";
  const uint64_t third = fence.NumberOfRenewal(At(109));
  fence.Connected(At(110));
  EXPECT_FALSE(fence.Answered(third)) << "of the connection before";
}

TEST(Fence, TimeThatTheMachineSleptCounts) {
  Fence fence(/*strict=*/true, MonoTime());
  fence.Connected(At(100));
  fence.Welcomed(absl::Seconds(10));
  const uint64_t sent = fence.NumberOfRenewal(At(103));
  fence.Slept(absl::Seconds(5));
  EXPECT_EQ(fence.at(), At(103));
  EXPECT_TRUE(fence.Answered(sent));
  EXPECT_EQ(fence.at(), At(106)) << "it was sent before that";
  fence.Connected(At(104));
  fence.Slept(absl::Seconds(1));
  fence.Welcomed(absl::Seconds(10));
  EXPECT_EQ(fence.at(), At(111));
}

TEST(Fence, TimeThatTheMachineSleptCountsForThoseTakenOver) {
  Fence fence(/*strict=*/true, At(50));
  fence.Slept(absl::Seconds(20));
  EXPECT_EQ(fence.at(), At(30));
}

TEST(Fence, TakenOver_AsLongAsTheOtherOneHeldThem) {
  Fence fence(/*strict=*/true, At(50));
  EXPECT_EQ(fence.at(), At(50));
}

}  // namespace
}  // namespace cadre::agent
