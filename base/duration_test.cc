#include "base/duration.h"

#include "gtest/gtest.h"

namespace cadre {
namespace {

TEST(DurationTest, SurvivesTheWire) {
  for (const absl::Duration duration :
       {absl::ZeroDuration(), absl::Milliseconds(1500), absl::Hours(24 * 365)}) {
    EXPECT_EQ(FromProto(ToProto(duration)), duration);
  }
}

TEST(DurationTest, WhatNobodyMayAskForBecomesTheNearestThatOneMay) {
  google::protobuf::Duration said;
  said.set_seconds(-5);
  said.set_nanos(-1);
  EXPECT_EQ(FromProto(said), absl::ZeroDuration());
  said.set_seconds(int64_t{1} << 62);
  said.set_nanos(2000000000);
  EXPECT_EQ(FromProto(said), absl::Seconds(kMaxDurationSeconds) + absl::Nanoseconds(999999999));
}

}  // namespace
}  // namespace cadre
