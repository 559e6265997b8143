#include "rendezvous/step/lease_clock.h"

#include "gtest/gtest.h"

namespace cadre::step {
namespace {

constexpr absl::Duration kLease = absl::Seconds(12);
constexpr absl::Duration kSlack = absl::Milliseconds(100);

MonoTime At(double seconds) { return MonoTime() + absl::Seconds(seconds); }

// The simulated host steps exactly when a step is due.
class LeaseClockTest : public testing::Test {
 protected:
  LeaseClockTest() { Step(1); }
  absl::Duration Step(double host) { return clock_.Advance(At(host), At(host), true); }
  void Go(double from, double until) {
    for (double at = from; at < until; at += 0.05) Step(at);
    Step(until);
  }
  LeaseClock clock_{kLease, kSlack};
};

TEST_F(LeaseClockTest, ItGoesWithTheHosts) {
  Go(1, 3);
  EXPECT_EQ(clock_.now(), At(3));
  EXPECT_EQ(clock_.ExpiresAt(At(4), true), At(4));
  EXPECT_EQ(clock_.ToHost(At(4)), At(4));
  EXPECT_EQ(clock_.ToHost(MonoTime::Never()), MonoTime::Never());
}

TEST_F(LeaseClockTest, WhileTheHostStoodStillNoLeaseWentOn) {
  EXPECT_EQ(Step(61), absl::Seconds(60));
  EXPECT_EQ(clock_.now(), At(1));
  EXPECT_EQ(clock_.ToHost(At(13)), At(73));
  EXPECT_EQ(clock_.FromRecord(absl::ToInt64Microseconds(absl::Seconds(61))), At(1));
  Go(61, 73);
  EXPECT_EQ(clock_.now(), At(13));
}

TEST_F(LeaseClockTest, WithoutLeasesAHostMaySleep) {
  EXPECT_EQ(clock_.Advance(At(61), MonoTime::Never(), false), absl::ZeroDuration());
  EXPECT_EQ(clock_.now(), At(61));
}

TEST_F(LeaseClockTest, AfterADelayThereIsTimeToReadWhatWasSaid) {
  Step(3);
  EXPECT_EQ(clock_.now(), At(3));
  EXPECT_EQ(clock_.ExpiresAt(At(2.5), false), At(3) + kSlack);
  EXPECT_EQ(clock_.ExpiresAt(At(3.05), false), At(3.05));
  EXPECT_EQ(clock_.ExpiresAt(At(3.05), true), At(3.05) + kSlack);
  EXPECT_EQ(clock_.ExpiresAt(At(3.2), true), At(3.2));
}

TEST_F(LeaseClockTest, SoThereIsAfterAStepThatWasLate) {
  clock_.Advance(At(1.15), At(1.04), true);
  EXPECT_EQ(clock_.ExpiresAt(At(1.04), false), At(1.15) + kSlack);
}

TEST_F(LeaseClockTest, AHostThatIsAlwaysLatePutsNothingOffForLongerThanALease) {
  for (double at = 1; at < 14; at += 0.5) Step(at);
  EXPECT_GT(clock_.ExpiresAt(At(2), false), clock_.now());
  Step(14);
  EXPECT_EQ(clock_.ExpiresAt(At(2), false), At(2));
}

TEST_F(LeaseClockTest, WhileTheHostCannotSaveOnlyLeasesGoOn) {
  EXPECT_TRUE(clock_.SetCanSave(false));
  EXPECT_FALSE(clock_.SetCanSave(false));
  Go(1, 31);
  EXPECT_EQ(clock_.now(), At(1));
  EXPECT_EQ(clock_.lease_now(), At(31));
  EXPECT_EQ(clock_.ToHost(At(2)), MonoTime::Never());
  EXPECT_EQ(clock_.LeaseToHost(At(32)), At(32));
  EXPECT_TRUE(clock_.SetCanSave(true));
  EXPECT_EQ(clock_.now(), At(1));
  EXPECT_EQ(clock_.reachable_since(), At(1));
  EXPECT_EQ(clock_.ToHost(At(2)), At(32));
  Go(31, 33);
  EXPECT_EQ(clock_.now(), At(3));
  EXPECT_EQ(clock_.lease_now(), At(33));
}

TEST_F(LeaseClockTest, APauseInWhichTheHostCouldNotSaveCountsOnce) {
  clock_.SetCanSave(false);
  EXPECT_EQ(Step(61), absl::Seconds(60));
  Go(61, 71);
  clock_.SetCanSave(true);
  EXPECT_EQ(clock_.now(), At(1));
  EXPECT_EQ(clock_.lease_now(), At(11));
  EXPECT_EQ(clock_.ToHost(At(1)), At(71));
}

TEST_F(LeaseClockTest, WhoIsAbsentCannotComeBackWhileTheHostCannotSave) {
  clock_.SetCanSave(false);
  EXPECT_EQ(clock_.ExpiresAt(At(1), true), At(1) + kLease);
  EXPECT_EQ(clock_.ExpiresAt(At(1.5), false), At(1.5));
}

}  // namespace

}  // namespace cadre::step
