// What stories do not tell well: what the core refuses, and pauses.
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/core/core_rig.h"

namespace cadre {
namespace {

using CoreTest = CoreRig;

TEST_F(CoreTest, TheFirstMessageIsAJoin) {
  const Speaker a{"train", "a", 1, 0};
  EXPECT_EQ(ClosedWith(Say(1, StoppedFrom(a))), absl::StatusCode::kInvalidArgument);
  // What the host still had in its queue for that stream is dropped.
  EXPECT_TRUE(Join(1, SpecOf("train", 1, 1, 0), "a").send.empty());
}

TEST_F(CoreTest, AnotherJobOrIncarnationClosesTheStream) {
  const v1::JobSpec spec = SpecOf("train", 2, 2, 0);
  Join(1, spec, "a");
  EXPECT_EQ(ClosedWith(Say(1, StartedFrom({"train", "a", 2, 0}, 0))),
            absl::StatusCode::kInvalidArgument);
  Join(2, spec, "a");
  EXPECT_EQ(ClosedWith(Say(2, StartedFrom({"other", "a", 1, 0}, 0))),
            absl::StatusCode::kInvalidArgument);
  Join(3, spec, "a");
  EXPECT_EQ(ClosedWith(Join(3, spec, "a")), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(core_.CheckInvariants().ok()) << core_.CheckInvariants();
}

TEST_F(CoreTest, ARenewalWithANumberIsAnswered) {
  Join(1, SpecOf("train", 1, 1, 0), "a");
  v1::NodeMessage renew = StartedFrom({"train", "a", 1, 0}, 0);
  renew.mutable_renew();
  EXPECT_FALSE(Has(Say(1, renew), v1::ServerMessage::kRenewed));
  renew.mutable_renew()->set_number(7);
  const Effects effects = Say(1, renew);
  ASSERT_EQ(effects.send.size(), 1u);
  EXPECT_EQ(effects.send[0].message.renewed().number(), 7u);
}

TEST_F(CoreTest, TheNodeOfRankZeroIsToldTheAddressesOfAll) {
  const v1::JobSpec spec = SpecOf("train", 2, 2, 0);
  Effects effects;
  for (uint64_t stream = 1; stream <= 2; ++stream) {
    const std::string node(1, static_cast<char>('a' + stream - 1));
    v1::NodeMessage join = JoinFrom({"train", node, 1, 0}, spec, 1);
    join.mutable_join()->set_address(absl::StrCat("10.0.0.", stream));
    effects = Say(stream, join);
  }
  std::vector<std::vector<std::string>> told;
  for (const SendToStream& send : effects.send) {
    if (!send.message.has_assign()) continue;
    const auto& addresses = send.message.assign().node_addresses();
    told.emplace_back(addresses.begin(), addresses.end());
  }
  EXPECT_THAT(
      told, testing::ElementsAre(testing::ElementsAre("10.0.0.1", "10.0.0.2"), testing::IsEmpty()));
}

TEST_F(CoreTest, ANodeWithStrictFencingIsLostOnlyWhenItsLeaseEnds) {
  const CoreConfig config;
  for (const bool strict : {false, true}) {
    const std::string job = strict ? "strict" : "plain";
    v1::NodeMessage join = JoinFrom({job, "a", 1, 0}, SpecOf(job, 1, 1, 0), 1);
    join.mutable_join()->set_strict_fencing(strict);
    const uint64_t stream = strict ? 2 : 1;
    Say(stream, join);
    const MonoTime heard = now_;
    Elapse(absl::Seconds(3));
    Step(StreamClosed{StreamId{stream}});
    Elapse(absl::Seconds(1));
    EXPECT_EQ(core_.Status(now_, job)->phase(), strict ? v1::RUNNING : v1::FAILED);
    Elapse(heard + config.lease - now_ - absl::Milliseconds(1));
    EXPECT_EQ(core_.Status(now_, job)->phase(), strict ? v1::RUNNING : v1::FAILED);
    Elapse(absl::Seconds(1));
    EXPECT_EQ(core_.Status(now_, job)->phase(), v1::FAILED);
  }
}

TEST_F(CoreTest, AnOlderGenerationIsIgnoredAndAFutureOneRefused) {
  Join(1, SpecOf("train", 1, 1, 0), "a");
  const std::string before = core_.DebugString();
  const Effects old = Say(1, ExitedFrom({"train", "a", 1, 0}, 0, 1, 0));
  EXPECT_TRUE(old.append.empty() && old.close.empty());
  EXPECT_EQ(old.notes.size(), 1u);
  EXPECT_EQ(ClosedWith(Say(1, ExitedFrom({"train", "a", 1, 2}, 0, 1, 0))),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(core_.DebugString(), before);
}

TEST_F(CoreTest, AnEndedJobIsRunAnewOnlyWhenItsNodesHaveGone) {
  const v1::JobSpec spec = SpecOf("train", 1, 1, 0);
  Join(1, spec, "a");
  Say(1, ExitedFrom({"train", "a", 1, 1}, 0, 0, 0));
  EXPECT_EQ(ClosedWith(Join(2, spec, "b")), absl::StatusCode::kFailedPrecondition);
  Step(StreamClosed{StreamId{1}});
  const Effects again = Join(3, spec, "b");
  ASSERT_TRUE(Has(again, v1::ServerMessage::kAssign));
  EXPECT_EQ(core_.Status(now_, "train")->generation(), 2u);
}

TEST_F(CoreTest, APauseOfTheHostCostsNobodyItsLease) {
  Join(1, SpecOf("train", 2, 2, 0), "a");
  Join(2, SpecOf("train", 2, 2, 0), "b");
  Pass(absl::Minutes(1));
  EXPECT_TRUE(Step(Tick{}).append.empty());
  const size_t running = records_;
  // From then on they must be heard again.
  EXPECT_TRUE(Step(Tick{}).append.empty());
  const MonoTime lost = now_ + CoreConfig().lease;
  TickUntil(lost + absl::Microseconds(-1));
  EXPECT_EQ(records_, running);
  now_ = lost;
  EXPECT_EQ(Step(Tick{}).append.size(), 4u);  // both removed, a stop order, the end
}

// As where the machine slept, or its clock jumped.
TEST_F(CoreTest, AJumpOfTimeCostsNobodyItsLeaseHoweverLong) {
  Join(1, SpecOf("train", 2, 2, 0), "a");
  Join(2, SpecOf("train", 2, 2, 0), "b");
  const size_t running = records_;
  for (const absl::Duration jump :
       {absl::Seconds(11), absl::Hours(1), absl::Hours(24), absl::Hours(24 * 365)}) {
    now_ = now_ + jump;
    EXPECT_TRUE(Step(Tick{}).append.empty()) << jump;
    // What they said meanwhile is read after that.
    for (const uint64_t stream : {1, 2}) {
      v1::NodeMessage renew = StartedFrom({"train", stream == 1 ? "a" : "b", 1, 1}, 0);
      renew.mutable_renew();
      Say(stream, renew);
    }
    TickUntil(now_ + CoreConfig().lease / 2);
    EXPECT_EQ(core_.Status(now_, "train")->nodes_size(), 2) << jump;
  }
  EXPECT_EQ(records_, running);
}

TEST_F(CoreTest, APauseThatEndsJustWhenALeaseDoesLeavesTimeToReadWhatWasSaid) {
  Join(1, SpecOf("train", 2, 2, 0), "a");
  const MonoTime lost = now_ + CoreConfig().lease;
  TickUntil(lost + absl::Seconds(-1));
  now_ = lost + absl::Milliseconds(1);
  EXPECT_TRUE(Step(Tick{}).append.empty());
  v1::NodeMessage renew = StartedFrom({"train", "a", 1, 0}, 0);
  renew.mutable_renew();
  Say(1, renew);
  TickUntil(lost + absl::Seconds(5));
  EXPECT_EQ(core_.Status(now_, "train")->nodes_size(), 1);
}

// Another server's generation is another one, also where it has the same number.
TEST_F(CoreTest, WhatANodeSaysOfAnotherServersGeneration_IsOfItsOldWorkersAlone) {
  const v1::JobSpec spec = SpecOf("train", 1, 1, 0);
  const auto of_another = [](v1::NodeMessage message) {
    message.set_server_id(99);
    return message;
  };
  const Effects greeted = Say(1, of_another(JoinFrom({"train", "a", 1, 1}, spec, 1)));
  bool stopped = false;
  for (const SendToStream& send : greeted.send) {
    if (send.message.has_stop()) stopped = send.message.server_id() == 99;
  }
  EXPECT_TRUE(stopped);
  EXPECT_TRUE(
      Has(Say(1, of_another(StoppedFrom({"train", "a", 1, 1}))), v1::ServerMessage::kAssign));
  Say(1, of_another(ExitedFrom({"train", "a", 1, 1}, 0, 1, 0)));
  EXPECT_EQ(core_.Status(now_, "train")->phase(), v1::RUNNING);
  Say(1, ExitedFrom({"train", "a", 1, 1}, 0, 1, 0));
  EXPECT_NE(core_.Status(now_, "train")->phase(), v1::RUNNING);
}

TEST_F(CoreTest, ANodeOfForgottenStateTakesPartOnceItsOldWorkersAreGone) {
  const v1::JobSpec spec = SpecOf("train", 1, 1, 0);
  v1::NodeMessage join = JoinFrom({"train", "a", 1, 3}, spec, 1);
  join.mutable_join()->set_held_port(0);
  const Effects greeted = Say(1, join);
  EXPECT_TRUE(Has(greeted, v1::ServerMessage::kStop));
  EXPECT_FALSE(Has(greeted, v1::ServerMessage::kAssign));
  v1::NodeMessage stopped = StoppedFrom({"train", "a", 1, 3});
  stopped.mutable_node_stopped()->set_held_port(4711);
  const Effects formed = Say(1, stopped);
  ASSERT_TRUE(Has(formed, v1::ServerMessage::kAssign));
  for (const SendToStream& send : formed.send) {
    if (send.message.has_assign()) {
      EXPECT_EQ(send.message.assign().master_port(), 4711u);
    }
  }
}

TEST_F(CoreTest, AServerForOneJobRefusesOthers) {
  CoreConfig config;
  config.only_job = "train";
  Core core(config);
  const Effects refused = core.Step(
      now_, NodeSaid{StreamId{1}, JoinFrom({"other", "a", 1, 0}, SpecOf("other", 1, 1, 0), 1)});
  EXPECT_EQ(ClosedWith(refused), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(refused.append.empty());
}

TEST_F(CoreTest, ANodeWithoutASpecIsRefused) {
  v1::NodeMessage join = JoinFrom({"train", "a", 1, 0}, v1::JobSpec(), 1);
  join.mutable_join()->clear_spec();
  const Effects refused = Step(NodeSaid{StreamId{1}, join});
  EXPECT_EQ(refused.send.at(0).message.rejected().message(),
            "node a brings no spec and names no part of a submitted job");
  EXPECT_TRUE(refused.append.empty());
}

TEST_F(CoreTest, WhoWaitsIsToldOfARefusedNode) {
  Join(1, SpecOf("train", 2, 2, 0), "a");
  v1::JobSpec other = SpecOf("train", 2, 2, 0);
  other.mutable_restart()->set_max(3);
  const Effects refused = Join(2, other, "b");
  EXPECT_TRUE(Has(refused, v1::ServerMessage::kStatus));
  EXPECT_THAT(core_.Status(now_, "train")->waiting_for(),
              testing::HasSubstr("node b was refused: restart.max differs"));
  Join(3, SpecOf("train", 2, 2, 0), "c");
  EXPECT_EQ(core_.Status(now_, "train")->phase(), v1::RUNNING);
}

TEST_F(CoreTest, AShortDelayExtendsNoLeaseButLeavesTimeToReadWhatWasSaid) {
  Join(1, SpecOf("train", 2, 2, 0), "a");
  const MonoTime lost = now_ + CoreConfig().lease;
  TickUntil(lost + absl::Microseconds(-1));
  now_ = lost + absl::Seconds(1);
  EXPECT_TRUE(Step(Tick{}).append.empty());
  EXPECT_EQ(core_.NextDeadline(), now_ + CoreConfig().reconnect_grace);
  now_ = core_.NextDeadline();
  EXPECT_EQ(Step(Tick{}).append.size(), 1u);
}

TEST_F(CoreTest, AHostThatIsAlwaysLateSparesNobodyForLong) {
  Join(1, SpecOf("train", 2, 2, 0), "a");
  const MonoTime joined = now_;
  while (core_.Status(now_, "train")->nodes_size() > 0) {
    now_ = core_.NextDeadline() + 2 * CoreConfig().reconnect_grace;
    Step(Tick{});
    ASSERT_LT(now_ - joined, 3 * CoreConfig().lease);
  }
}

TEST_F(CoreTest, UnknownJobsAreNotFound) {
  EXPECT_EQ(core_.Explain(now_, "x").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(core_.Status(now_, "x").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(core_.AllStatuses(now_).empty());
  v1::StoreRequest request;
  request.set_job("x");
  request.mutable_get()->set_key("k");
  const Effects effects = Step(StoreCalled{CallId{1}, request});
  ASSERT_EQ(effects.reply.size(), 1u);
  EXPECT_EQ(effects.reply[0].reply.code(), static_cast<int>(absl::StatusCode::kNotFound));
  EXPECT_TRUE(Step(JobCancelled{"x", "", 0}).append.empty());
  EXPECT_TRUE(core_.CheckInvariants().ok());
}

TEST_F(CoreTest, TheStatusShowsWhoHasWhichRanks) {
  Join(1, SpecOf("train", 2, 2, 4), "b", 2);
  Pass(absl::Seconds(1));
  Join(2, SpecOf("train", 2, 2, 4), "a", 3);
  Join(3, SpecOf("train", 2, 2, 4), "c", 1);
  Pass(absl::Seconds(1));
  for (uint32_t i = 0; i < 3; ++i) Say(2, StartedFrom({"train", "a", 1, 1}, i));
  for (uint32_t i = 0; i < 2; ++i) Say(1, StartedFrom({"train", "b", 1, 1}, i));
  const v1::JobStatus status = *core_.Status(now_, "train");
  EXPECT_EQ(status.phase(), v1::RUNNING);
  EXPECT_EQ(status.world_size(), 5u);
  EXPECT_EQ(status.workers_running(), 5u);
  EXPECT_EQ(status.max_restarts(), 4u);
  EXPECT_EQ(status.waiting_for(), "");
  ASSERT_EQ(status.nodes_size(), 3);
  EXPECT_EQ(status.nodes(1).first_rank(), 3);
  EXPECT_EQ(status.nodes(2).node_rank(), -1);
  ASSERT_EQ(status.timeline().generations_size(), 1);
  EXPECT_EQ(status.timeline().generations(0).formed_us(), 1000000);
  EXPECT_EQ(status.timeline().generations(0).running_us(), 2000000);
}

TEST_F(CoreTest, WhatPeersSayIsMadeHarmless) {
  Join(1, SpecOf("train", 2, 2, 0), "a");
  v1::NodeMessage cancel = MessageFrom({"train", "a", 1, 0});
  cancel.mutable_cancel()->set_reason(std::string("stop\x1b[2J\n") + std::string(5000, 'x'));
  Say(1, cancel);
  const std::string message = core_.Status(now_, "train")->verdict().message();
  EXPECT_EQ(message.find("stop\\x1b[2J\\nxxx"), 0u);
  EXPECT_LE(message.size(), 300u);
}

TEST_F(CoreTest, WhatHadFailedBeforeAUserCancelledIsKept) {
  Join(1, SpecOf("train", 1, 1, 3), "a", 2);
  Say(1, ExitedFrom({"train", "a", 1, 1}, 0, 3, 0));
  Step(JobCancelled{"train", "enough", 0});
  Say(1, StoppedFrom({"train", "a", 1, 1}));
  const v1::Verdict verdict = core_.Status(now_, "train")->verdict();
  EXPECT_EQ(verdict.outcome(), v1::CANCELLED_PHASE);
  ASSERT_EQ(verdict.earlier_size(), 1);
  EXPECT_EQ(verdict.earlier(0).exit().exit_code(), 3);
  EXPECT_EQ(verdict.collateral_size(), 0) << "it did not follow from being cancelled";
}

TEST_F(CoreTest, ANodeThatIsDoneAndGoneIsNotInABarrier) {
  Join(1, SpecOf("train", 2, 2, 0), "a");
  Join(2, SpecOf("train", 2, 2, 0), "b");
  const auto enter = [&](uint64_t stream, const std::string& node, int32_t rank) {
    v1::NodeMessage message = MessageFrom({"train", node, 1, 1});
    v1::StoreRequest* request = message.mutable_store();
    request->set_job("train");
    request->set_generation(1);
    request->set_rank(rank);
    request->set_client(rank);
    request->set_request_id(1);
    request->set_wait_ms(60000);
    request->mutable_barrier()->set_name("end");
    return Say(stream, message);
  };
  enter(1, "a", 0);
  Say(1, ExitedFrom({"train", "a", 1, 1}, 0, 0, 0));
  v1::NodeMessage leave = MessageFrom({"train", "a", 1, 1});
  leave.mutable_leave();
  Say(1, leave);
  EXPECT_EQ(core_.Status(now_, "train")->phase(), v1::RUNNING);
  EXPECT_FALSE(Has(enter(2, "b", 1), v1::ServerMessage::kStore));
}

TEST_F(CoreTest, ARenewalIsSilent) {
  Join(1, SpecOf("train", 2, 2, 0), "a");
  v1::NodeMessage renew = MessageFrom({"train", "a", 1, 0});
  renew.mutable_renew();
  const Effects effects = Say(1, renew);
  EXPECT_TRUE(effects.send.empty() && effects.append.empty() && effects.notes.empty());
}

TEST_F(CoreTest, AFinishedNodeThatStaysIsLetGo) {
  Join(1, SpecOf("train", 1, 1, 0), "a");
  Say(1, ExitedFrom({"train", "a", 1, 1}, 0, 0, 0));
  const MonoTime let_go = now_ + CoreConfig().lease;
  TickUntil(let_go + absl::Microseconds(-1));
  ASSERT_NE(core_.NextDeadline(), MonoTime::Never());
  now_ = let_go;
  EXPECT_EQ(ClosedWith(Step(Tick{})), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(core_.NextDeadline(), MonoTime::Never());
}

}  // namespace
}  // namespace cadre
