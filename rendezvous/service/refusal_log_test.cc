#include "rendezvous/service/refusal_log.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace cadre::service {
namespace {

const MonoTime kStart = MonoTime() + absl::Hours(1);

TEST(RefusalLog, TheSameIsSaidOnceAMinute) {
  RefusalLog log;
  EXPECT_EQ(log.Line(kStart, "10.0.0.1", "no token"), "refused 10.0.0.1: no token");
  EXPECT_EQ(log.Line(kStart + absl::Seconds(1), "10.0.0.1", "no token"), std::nullopt);
  EXPECT_EQ(log.Line(kStart + absl::Seconds(59), "10.0.0.1", "no token"), std::nullopt);
  EXPECT_EQ(log.Line(kStart + kRefusalSaidAgain, "10.0.0.1", "no token"),
            "refused 10.0.0.1: no token (and 2 more before)");
}

TEST(RefusalLog, AnotherReasonOrAddressIsSaidAtOnce) {
  RefusalLog log;
  log.Line(kStart, "10.0.0.1", "no token");
  EXPECT_EQ(log.Line(kStart, "10.0.0.1", "another token"), "refused 10.0.0.1: another token");
  EXPECT_EQ(log.Line(kStart, "10.0.0.2", "no token"), "refused 10.0.0.2: no token");
}

TEST(RefusalLog, ManyAddressesFillNoDisk) {
  RefusalLog log;
  size_t lines = 0;
  for (int i = 0; i < 1000; ++i) {
    if (log.Line(kStart, absl::StrCat("10.0.0.", i), "no token")) ++lines;
  }
  EXPECT_EQ(lines, kRefusalsSaid);
  EXPECT_EQ(
      log.Line(kStart + kRefusalSaidAgain, "10.0.0.1", "no token"),
      absl::StrCat("refused 10.0.0.1: no token (and ", 1000 - kRefusalsSaid, " more before)"));
}

}  // namespace
}  // namespace cadre::service
