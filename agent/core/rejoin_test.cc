// Workers that are kept when their generation is stopped.
#include "agent/core/agent_core_rig.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Generation 1 with three workers, all of which can rejoin.
class RejoinTest : public AgentCoreTest {
 protected:
  void SetUp() override {
    Feed(LinkUp{});
    Welcome();
    ASSERT_THAT(Assign(1, 3), ElementsAre("start 1"));
    for (uint32_t i = 0; i < 3; ++i) {
      Feed(WorkerRuns{1, i, static_cast<int32_t>(100 + i)});
      ASSERT_THAT(Feed(WorkerMayRejoin{1, i, true}), IsEmpty());
    }
  }

  // Worker 2 is killed, the others are to rejoin.
  void LoseOne() {
    EXPECT_THAT(Died(1, 2, 0, 9), ElementsAre("up exited 1/2 CRASH"));
    EXPECT_THAT(StopToRejoin(1), ElementsAre("stop 1 grace=5s keep 0,1"));
  }
};

TEST_F(RejoinTest, TheOthersWait_AndOnlyTheMissingOneIsStarted) {
  LoseOne();
  EXPECT_THAT(Waits(1, 0), IsEmpty());
  EXPECT_THAT(Feed(AllGone{1, 501, {0, 1}}), IsEmpty());
  EXPECT_THAT(Waits(1, 1), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Assign(2, 3), ElementsAre("start 2 keep 0,1", "up started 2/0 rejoined",
                                        "up started 2/1 rejoined"));
  EXPECT_THAT(Feed(WorkerRuns{2, 2, 110}), ElementsAre("up started 2/2"));
  // They must say again that they can.
  EXPECT_THAT(StopToRejoin(2), ElementsAre("stop 2 grace=5s"));
}

TEST_F(RejoinTest, AWorkerThatCameBeforeTheOrder_Waits) {
  EXPECT_THAT(Waits(1, 1), IsEmpty());
  EXPECT_THAT(Died(1, 2, 0, 9), ElementsAre("up exited 1/2 CRASH"));
  EXPECT_THAT(Waits(1, 0), IsEmpty());
  EXPECT_THAT(StopToRejoin(1), ElementsAre("stop 1 grace=5s keep 0,1"));
  EXPECT_THAT(Feed(AllGone{1, 501, {0, 1}}), ElementsAre("up stopped 1 port=501"));
}

TEST_F(RejoinTest, WhoCannotRejoin_IsStoppedAsEver) {
  Feed(WorkerMayRejoin{1, 0, false});
  EXPECT_THAT(StopToRejoin(1, /*replace=*/{1}), ElementsAre("stop 1 grace=5s keep 2"));
  Waits(1, 2);
  EXPECT_THAT(Feed(AllGone{1, 501, {2}}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Assign(2, 3), ElementsAre("start 2 keep 2", "up started 2/2 rejoined"));
}

TEST_F(RejoinTest, AnOrderWithoutRejoin_StopsAll) {
  Waits(1, 0);
  EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Assign(2, 3), ElementsAre("start 2"));
}

TEST_F(RejoinTest, WhoDoesNotComeInTime_IsReplaced) {
  LoseOne();
  Waits(1, 0);
  Feed(AllGone{1, 501, {0, 1}});
  EXPECT_THAT(
      After(absl::Seconds(5)),
      testing::IsSupersetOf({"say rank 1 (local rank 1, pid 101) did not give generation 1 up "
                             "within 5s: it is killed and replaced",
                             "stop 1 grace=0 keep 0"}));
  // What was gone before says nothing about the worker that is stopped now.
  EXPECT_THAT(Feed(AllGone{1, 501, {0, 1}}), IsEmpty());
  EXPECT_THAT(Died(1, 1, 0, 9), ElementsAre("up exited 1/1 CRASH late"));
  EXPECT_THAT(Feed(AllGone{1, 501, {0}}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Assign(2, 3), ElementsAre("start 2 keep 0", "up started 2/0 rejoined"));
}

TEST_F(RejoinTest, WhoIsAskedFor_SaysWhoHasNotCome) {
  EXPECT_THAT(Inspect(1), ElementsAre("look 1 overdue="));
  EXPECT_THAT(Found({0, 1, 2}), ElementsAre("up evidence 0 1 2"));
  Feed(EvidenceDone{1});
  LoseOne();
  Waits(1, 0);
  Feed(AllGone{1, 501, {0, 1}});
  Waits(1, 1);
  Assign(2, 3);
  Feed(WorkerRuns{2, 2, 110});
  Inspect(2);
  EXPECT_THAT(Found({0, 1, 2}, 2), ElementsAre("up evidence 0 1 2 absent"));
  Feed(EvidenceDone{2});
  Feed(WorkerMayRejoin{2, 2, true});
  Inspect(2);
  EXPECT_THAT(Found({0, 1, 2}, 2), ElementsAre("up evidence 0 1 2"));
}

TEST_F(RejoinTest, WhoDiesWhileTheOthersCome_IsReplaced) {
  LoseOne();
  Waits(1, 0);
  EXPECT_THAT(Died(1, 1, 0, 11), ElementsAre("stop 1 grace=5s keep 0", "up exited 1/1 CRASH"));
  EXPECT_THAT(Feed(AllGone{1, 501, {0}}), ElementsAre("up stopped 1 port=501"));
  // The last one too, while the server gathers nodes.
  EXPECT_THAT(Died(1, 0, 0, 11), ElementsAre("stop 1 grace=0"));
  EXPECT_THAT(Assign(2, 3), ElementsAre("start 2"));
  EXPECT_THAT(Feed(AllGone{1, 502}), IsEmpty());
}

TEST_F(RejoinTest, NobodyEndsTheGeneration_TheServerIsTold) {
  EXPECT_THAT(Waits(1, 1), IsEmpty());
  EXPECT_THAT(Deadline(absl::Milliseconds(500)), ElementsAre("up gave_up 1/1 a peer is gone"));
  EXPECT_THAT(After(absl::Seconds(1)), IsEmpty());
  // A server that comes back is told again.
  Down();
  Feed(LinkUp{});
  EXPECT_THAT(Welcome(), testing::Contains("up gave_up 1/1 a peer is gone"));
}

TEST_F(RejoinTest, TheJobEndsWhileTheyWait_TheyAreStopped) {
  LoseOne();
  Waits(1, 0);
  Waits(1, 1);
  ASSERT_THAT(Feed(AllGone{1, 501, {0, 1}}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Finished(v1::FAILED, 7), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("exit 7"));
}

TEST_F(RejoinTest, TheJobEndsBeforeTheyCome_TheyAreStopped) {
  LoseOne();
  EXPECT_THAT(Finished(v1::CANCELLED_PHASE, 130), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Feed(AllGone{1, 501, {0, 1}}), IsEmpty());
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("exit 130"));
}

TEST_F(RejoinTest, TheServerForgetsUsWhileTheyWait_TheyAreStopped) {
  LoseOne();
  Waits(1, 0);
  Waits(1, 1);
  Feed(AllGone{1, 501, {0, 1}});
  Down();
  // For the server nothing of the generation runs here any more.
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=501 gen=0"));
  EXPECT_THAT(Welcome(/*server_id=*/2), testing::Contains("stop 1 grace=5s"));
  // It never heard of that generation, and may have begun one of the same number.
  EXPECT_THAT(Assign(1, 3), IsEmpty());
  Down();
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=0 gen=1")) << "of the other server";
  EXPECT_THAT(Welcome(/*server_id=*/2), ElementsAre("say reached the rendezvous server at h:1"))
      << "its own first generation did not run here";
  // The order went with its connection; the server gives it again.
  EXPECT_THAT(Feed(AllGone{1, 502}), IsEmpty());
  EXPECT_THAT(Assign(1, 3), ElementsAre("start 1"));
}

TEST_F(RejoinTest, TheServerForgetsUs_WhoBeganToWaitAfterTheJoinIsReported) {
  LoseOne();
  Down();
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=0 gen=1"));
  Waits(1, 0);
  Waits(1, 1);
  EXPECT_THAT(Feed(AllGone{1, 501, {0, 1}}), IsEmpty());
  EXPECT_THAT(Welcome(/*server_id=*/2), testing::Contains("stop 1 grace=5s"));
  EXPECT_THAT(StopOfServer(1, 1), IsEmpty()) << "their end is the answer";
  EXPECT_THAT(Feed(AllGone{1, 502}), ElementsAre("up stopped 1 port=502"));
  EXPECT_THAT(Assign(1, 3), ElementsAre("start 1"));
}

// Its first generation is over before this node could begin with it.
TEST_F(RejoinTest, TheServerForgetsUsAndStopsItsOwn_ThatIsNotStartedAnyMore) {
  LoseOne();
  Waits(1, 0);
  Waits(1, 1);
  Feed(AllGone{1, 501, {0, 1}});
  Down();
  Feed(LinkUp{});
  EXPECT_THAT(Welcome(/*server_id=*/2), testing::Contains("stop 1 grace=5s"));
  EXPECT_THAT(Assign(1, 3), IsEmpty());
  EXPECT_THAT(Stop(1), ElementsAre("up stopped 1 port=0"));
  EXPECT_THAT(Feed(AllGone{1, 502}), IsEmpty());
  EXPECT_THAT(Assign(2, 3), ElementsAre("start 2"));
}

TEST_F(RejoinTest, WhoWaitsWhileTheStopWaitsForALook_DoesNotEndTheGeneration) {
  LoseOne();
  Waits(1, 0);
  Waits(1, 1);
  Feed(AllGone{1, 501, {0, 1}});
  Assign(2, 3);
  Feed(WorkerRuns{2, 2, 110});
  EXPECT_THAT(Inspect(2), ElementsAre("look 2 overdue="));
  EXPECT_THAT(Stop(2), IsEmpty());
  EXPECT_THAT(Waits(2, 1), IsEmpty()) << "the others still run";
  EXPECT_THAT(Feed(EvidenceDone{2}), ElementsAre("stop 2 grace=5s"));
  EXPECT_THAT(Feed(AllGone{2, 501}), ElementsAre("up stopped 2 port=501"));
}

TEST_F(RejoinTest, AGenerationThatNeverStartedHere_ChangesNothingForThem) {
  LoseOne();
  Waits(1, 0);
  Waits(1, 1);
  Feed(AllGone{1, 501, {0, 1}});
  EXPECT_THAT(StopToRejoin(2), ElementsAre("up stopped 2 port=501"));
  EXPECT_THAT(Died(1, 1, 0, 9), ElementsAre("stop 1 grace=0 keep 0"));
  EXPECT_THAT(Assign(3, 3), ElementsAre("start 3 keep 0", "up started 3/0 rejoined"));
}

TEST_F(RejoinTest, WhoWaitsDoesNotHang) {
  LimitProgress(/*silence_seconds=*/30);
  Waits(1, 0);
  Waits(1, 1);
  Waits(1, 2);
  for (const std::string& line : After(absl::Seconds(40))) {
    EXPECT_THAT(line, testing::Not(HasSubstr("look")));
  }
}

// The server takes the one that is furthest behind for the culprit.
TEST_F(RejoinTest, WhoWaitsIsNotEvidenceOfAHang) {
  LimitProgress();
  Progress(0, 1);
  Progress(1, 2);
  Waits(1, 0);
  EXPECT_THAT(After(absl::Seconds(60)), testing::Contains("look 1 overdue=1"));
  EXPECT_THAT(Found({0, 1, 2}), ElementsAre("up evidence of a hang 1! 2"));
}

}  // namespace
}  // namespace cadre::agent
