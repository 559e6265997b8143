// A short soak: after a fault each second everything runs again, and at the end nothing is left.
#include "tests/soak/soak.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

TEST(SoakTest, NothingIsLeft) {
  SoakOptions options;
  options.length = absl::Seconds(25);
  options.period = absl::Seconds(1);
  options.measure_every = absl::Seconds(10);
  const SoakReport report = RunSoak(options);
  printf("%s", report.table.c_str());
  EXPECT_THAT(report.findings, testing::IsEmpty());
  EXPECT_GT(report.faults, 0);
}

}  // namespace
}  // namespace cadre
