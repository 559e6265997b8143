// Workers that SIGKILL does not end.
#include "agent/core/agent_core_rig.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class RemainsTest : public AgentCoreTest {
 protected:
  // Its worker 1 remains after an order to stop.
  void RunAndRemain() {
    Run();
    EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
    EXPECT_THAT(Died(1, 0, 0, 9), ElementsAre("up exited 1/0 CRASH"));
    EXPECT_THAT(Remains(1, 1), ElementsAre(kSaid, "up remains 1/1"));
  }

  static constexpr char kSaid[] =
      "say rank 1 (local rank 1) outlives SIGKILL: pid 77 is in nfs_wait (state D); only the file "
      "system or device that it waits for, or a restart of the machine, ends it; until then this "
      "launcher starts no workers";
  static constexpr char kGone[] =
      "say what SIGKILL had not ended is gone: this node can take part in the job again";
};

TEST_F(RemainsTest, TheNodeSaysSo_StaysConnected_AndIsBackWhenTheyAreGone) {
  RunAndRemain();
  EXPECT_THAT(After(absl::Minutes(10)), ElementsAre("up renew"));
  EXPECT_THAT(Assign(2), IsEmpty()) << "of a server that does not know such nodes";
  EXPECT_THAT(Died(1, 1, 0, 9), ElementsAre("up exited 1/1 CRASH"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre(kGone, "up stopped 1 port=501", "start 2"));
}

TEST_F(RemainsTest, AServerThatComesBackIsToldAgain_AsLongAsItIsSo) {
  RunAndRemain();
  Down();
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=0 gen=1"));
  EXPECT_THAT(Welcome(), Contains("up remains 1/1"));
  Down();
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre(kGone));
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=501 gen=0"));
  const Lines said = Welcome();
  EXPECT_THAT(said, Contains("up stopped 1 port=501"));
  EXPECT_THAT(said, Not(Contains("up remains 1/1")));
}

TEST_F(RemainsTest, AServerThatLostItsStateHearsWhyTheNodeDoesNotCome) {
  RunAndRemain();
  Down();
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=0 gen=1"));
  EXPECT_THAT(Welcome(2), Contains("up remains 1/1"));
  EXPECT_THAT(Remains(1, 0), Contains("up remains 1/0"));
}

TEST_F(RemainsTest, AreSaidOnce_AndNothingWentOnWithoutTheNode) {
  RunAndRemain();
  EXPECT_THAT(Remains(1, 1), IsEmpty()) << "the supervisor tells whoever asks for a stop";
  v1::ServerMessage stop;
  SetGeneration(&stop, {1, 1});
  stop.mutable_stop()->set_fenced(true);
  stop.mutable_stop()->set_reason("generation 1 went on without this node");
  EXPECT_THAT(Feed(ServerSaid{stop}), Not(Contains(HasSubstr("say fenced"))));
}

TEST_F(RemainsTest, WhatAnEndedWorkerStartedRemainsToo) {
  Run();
  EXPECT_THAT(Died(1, 1, 7), ElementsAre("up exited 1/1 CRASH"));
  EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Remains(1, 1), ElementsAre(kSaid, "up remains 1/1"));
  EXPECT_THAT(Remains(1, 5), IsEmpty()) << "there is no such worker";
  EXPECT_THAT(Remains(2, 1), IsEmpty());
}

TEST_F(RemainsTest, KeptWorkersWouldWaitInVain) {
  Run();
  Feed(WorkerMayRejoin{1, 0, true});
  EXPECT_THAT(StopToRejoin(1), ElementsAre("stop 1 grace=5s keep 0"));
  Waits(1, 0);
  EXPECT_THAT(Remains(1, 1), ElementsAre("stop 1 grace=0", kSaid, "up remains 1/1"));
  EXPECT_THAT(Feed(AllGone{1, 501, {0}}), IsEmpty()) << "of the order before";
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre(kGone, "up stopped 1 port=501"));
}

TEST_F(RemainsTest, WhoWaitsForTheNextAssignmentAndRemains_GetsNone) {
  Run();
  Feed(WorkerMayRejoin{1, 1, true});
  EXPECT_THAT(StopToRejoin(1), ElementsAre("stop 1 grace=5s keep 1"));
  Waits(1, 1);
  EXPECT_THAT(Feed(AllGone{1, 501, {1}}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Remains(1, 1), ElementsAre("stop 1 grace=0", kSaid, "up remains 1/1"));
  EXPECT_THAT(Assign(2, 2), IsEmpty());
  EXPECT_THAT(Feed(AllGone{1, 501}), Contains("start 2"));
}

TEST_F(RemainsTest, AJobThatEndsTakesNoNodeBack) {
  RunAndRemain();
  EXPECT_THAT(Finished(v1::FAILED, 1), IsEmpty());
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("exit 1"));
}

TEST_F(RemainsTest, AJobThatEndsDoesNotWaitForThem) {
  RunAndRemain();
  EXPECT_THAT(Finished(v1::FAILED, 1), IsEmpty());
  EXPECT_THAT(Deadline(absl::Seconds(7)), ElementsAre(HasSubstr("exit 1 some processes")));
}

}  // namespace
}  // namespace cadre::agent
