#include "rendezvous/job/node_connections.h"

#include "gtest/gtest.h"
#include "rendezvous/testing/pass_time.h"

namespace cadre::job {
namespace {

class ConnectionsTest : public testing::Test {
 protected:
  ConnectionsTest() { Pass(absl::Seconds(1)); }
  void Pass(absl::Duration duration) { PassTime(duration, &context_); }

  state::State state_;
  step::Context context_{CoreConfig(), &state_};
  NodeConnections connections_{context_};
};

TEST_F(ConnectionsTest, ANodeThatIsHeardIsLostALeaseAfterIt) {
  connections_.Attach("a", StreamId{1}, false, v1::Version());
  Pass(absl::Seconds(8));
  connections_.Renew("a");
  Pass(absl::Seconds(9));
  EXPECT_EQ(connections_.NextExpired(), std::nullopt);
  Pass(absl::Seconds(1));
  EXPECT_EQ(connections_.NextExpired(), "a");
}

TEST_F(ConnectionsTest, OneThatIsGoneHasTheGraceToComeBack) {
  connections_.Attach("a", StreamId{1}, false, v1::Version());
  connections_.Detach("a", absl::ZeroDuration());
  EXPECT_EQ(connections_.open(), 0u);
  Pass(absl::Milliseconds(50));
  EXPECT_EQ(connections_.NextExpired(), std::nullopt);
  Pass(absl::Milliseconds(50));
  EXPECT_EQ(connections_.NextExpired(), "a");
}

TEST_F(ConnectionsTest, WhereWorkersMayBeAdoptedItHasLonger) {
  connections_.Attach("a", StreamId{1}, false, v1::Version());
  connections_.Detach("a", absl::Seconds(30));
  Pass(absl::Seconds(30));
  EXPECT_EQ(connections_.NextExpired(), std::nullopt);
  Pass(absl::Milliseconds(100));
  EXPECT_EQ(connections_.NextExpired(), "a");
}

TEST_F(ConnectionsTest, OneThatStopsOldWorkersIsNotReady) {
  connections_.Attach("a", StreamId{1}, false, v1::Version());
  EXPECT_TRUE(connections_.IsReady("a"));
  connections_.SetOldGeneration("a", {1, 3});
  EXPECT_FALSE(connections_.IsReady("a"));
  EXPECT_EQ(connections_.open(), 1u);
  EXPECT_EQ(connections_.ready(), 0u);
  connections_.SetOldGeneration("a", {});
  EXPECT_EQ(connections_.ready(), 1u);
  EXPECT_TRUE(connections_.CheckInvariants().ok());
}

TEST_F(ConnectionsTest, WhileTheHostCannotSaveWhoIsSilentIsLostAndWhoIsAbsentIsNot) {
  connections_.Attach("a", StreamId{1}, false, v1::Version());
  connections_.Attach("b", StreamId{2}, false, v1::Version());
  context_.clock.SetCanSave(false);
  connections_.Detach("b", absl::ZeroDuration());
  Pass(absl::Seconds(9));
  EXPECT_EQ(connections_.NextExpired(), std::nullopt);
  Pass(absl::Seconds(1));
  EXPECT_EQ(connections_.NextExpired(), "a");
  connections_.Erase("a");
  EXPECT_EQ(connections_.NextExpired(), std::nullopt);
}

TEST_F(ConnectionsTest, WhenTheJobHasEndedOnlyOpenOnesStay) {
  connections_.Attach("a", StreamId{1}, false, v1::Version());
  connections_.Attach("b", StreamId{2}, false, v1::Version());
  connections_.Detach("b", absl::Seconds(30));
  connections_.BeginLeaving();
  EXPECT_EQ(connections_.all().size(), 1u);
  EXPECT_TRUE(connections_.CheckInvariants().ok());
}

}  // namespace

}  // namespace cadre::job
