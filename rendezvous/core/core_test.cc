// Tests what the golden stories do not cover well: what the core refuses, pauses and bounds, and
// which nodes it admits.
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/core/join_checks.h"
#include "rendezvous/testing/core_rig.h"
#include "rpc/versions.h"

namespace cadre {
namespace {

using CoreTest = CoreRig;

TEST_F(CoreTest, TheFirstMessageIsAJoin) {
  const Sender a{"train", "a", 1, 0};
  EXPECT_EQ(ClosedWith(Send(1, StoppedFrom(a))), absl::StatusCode::kInvalidArgument);
  // Messages of that stream that were still in the host's queue are dropped.
  EXPECT_TRUE(Join(1, SpecOf("train", 1, 1, 0), "a").send.empty());
}

TEST_F(CoreTest, AnotherJobOrIncarnationClosesTheStream) {
  const v1::JobSpec spec = SpecOf("train", 2, 2, 0);
  Join(1, spec, "a");
  EXPECT_EQ(ClosedWith(Send(1, StartedFrom({"train", "a", 2, 0}, 0))),
            absl::StatusCode::kInvalidArgument);
  Join(2, spec, "a");
  EXPECT_EQ(ClosedWith(Send(2, StartedFrom({"other", "a", 1, 0}, 0))),
            absl::StatusCode::kInvalidArgument);
  Join(3, spec, "a");
  EXPECT_EQ(ClosedWith(Join(3, spec, "a")), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(core_.CheckInvariants().ok()) << core_.CheckInvariants();
}

TEST_F(CoreTest, ARenewalWithANumberIsAnswered) {
  Join(1, SpecOf("train", 1, 1, 0), "a");
  v1::NodeMessage renew = StartedFrom({"train", "a", 1, 0}, 0);
  renew.mutable_renew();
  EXPECT_FALSE(Has(Send(1, renew), v1::ServerMessage::kRenewed));
  renew.mutable_renew()->set_number(7);
  const Effects effects = Send(1, renew);
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
    effects = Send(stream, join);
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
    Send(stream, join);
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
  const Effects old = Send(1, ExitedFrom({"train", "a", 1, 0}, 0, 1, 0));
  EXPECT_TRUE(old.append.empty() && old.close.empty());
  EXPECT_EQ(old.notes.size(), 1u);
  EXPECT_EQ(ClosedWith(Send(1, ExitedFrom({"train", "a", 1, 2}, 0, 1, 0))),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(core_.DebugString(), before);
}

TEST_F(CoreTest, AnEndedJobIsRunAnewOnlyWhenItsNodesHaveGone) {
  const v1::JobSpec spec = SpecOf("train", 1, 1, 0);
  Join(1, spec, "a");
  Send(1, ExitedFrom({"train", "a", 1, 1}, 0, 0, 0));
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
  // From then on their leases count again.
  EXPECT_TRUE(Step(Tick{}).append.empty());
  const MonoTime lost = now_ + CoreConfig().lease;
  TickUntil(lost + absl::Microseconds(-1));
  EXPECT_EQ(records_, running);
  now_ = lost;
  EXPECT_EQ(Step(Tick{}).append.size(), 4u);  // both removed, a stop order, the end
}

// The machine slept, for instance, or its clock jumped.
TEST_F(CoreTest, AJumpOfTimeCostsNobodyItsLeaseHoweverLong) {
  Join(1, SpecOf("train", 2, 2, 0), "a");
  Join(2, SpecOf("train", 2, 2, 0), "b");
  const size_t running = records_;
  for (const absl::Duration jump :
       {absl::Seconds(11), absl::Hours(1), absl::Hours(24), absl::Hours(24 * 365)}) {
    now_ = now_ + jump;
    EXPECT_TRUE(Step(Tick{}).append.empty()) << jump;
    // Renewals that were sent during the jump are read after it.
    for (const uint64_t stream : {1, 2}) {
      v1::NodeMessage renew = StartedFrom({"train", stream == 1 ? "a" : "b", 1, 1}, 0);
      renew.mutable_renew();
      Send(stream, renew);
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
  Send(1, renew);
  TickUntil(lost + absl::Seconds(5));
  EXPECT_EQ(core_.Status(now_, "train")->nodes_size(), 1);
}

// A generation of another server is a different one, even if it has the same number.
TEST_F(CoreTest, WhatANodeSaysOfAnotherServersGeneration_IsOfItsOldWorkersAlone) {
  const v1::JobSpec spec = SpecOf("train", 1, 1, 0);
  const auto of_another = [](v1::NodeMessage message) {
    message.set_server_id(99);
    return message;
  };
  const Effects greeted = Send(1, of_another(JoinFrom({"train", "a", 1, 1}, spec, 1)));
  bool stopped = false;
  for (const SendToStream& send : greeted.send) {
    if (send.message.has_stop()) stopped = send.message.server_id() == 99;
  }
  EXPECT_TRUE(stopped);
  EXPECT_TRUE(
      Has(Send(1, of_another(StoppedFrom({"train", "a", 1, 1}))), v1::ServerMessage::kAssign));
  Send(1, of_another(ExitedFrom({"train", "a", 1, 1}, 0, 1, 0)));
  EXPECT_EQ(core_.Status(now_, "train")->phase(), v1::RUNNING);
  Send(1, ExitedFrom({"train", "a", 1, 1}, 0, 1, 0));
  EXPECT_NE(core_.Status(now_, "train")->phase(), v1::RUNNING);
}

TEST_F(CoreTest, ANodeOfForgottenStateTakesPartOnceItsOldWorkersAreGone) {
  const v1::JobSpec spec = SpecOf("train", 1, 1, 0);
  v1::NodeMessage join = JoinFrom({"train", "a", 1, 3}, spec, 1);
  join.mutable_join()->set_held_port(0);
  const Effects greeted = Send(1, join);
  EXPECT_TRUE(Has(greeted, v1::ServerMessage::kStop));
  EXPECT_FALSE(Has(greeted, v1::ServerMessage::kAssign));
  v1::NodeMessage stopped = StoppedFrom({"train", "a", 1, 3});
  stopped.mutable_node_stopped()->set_held_port(4711);
  const Effects formed = Send(1, stopped);
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
      now_, NodeMessageReceived{StreamId{1},
                                JoinFrom({"other", "a", 1, 0}, SpecOf("other", 1, 1, 0), 1)});
  EXPECT_EQ(ClosedWith(refused), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(refused.append.empty());
}

TEST_F(CoreTest, ANodeWithoutASpecIsRefused) {
  v1::NodeMessage join = JoinFrom({"train", "a", 1, 0}, v1::JobSpec(), 1);
  join.mutable_join()->clear_spec();
  const Effects refused = Step(NodeMessageReceived{StreamId{1}, join});
  EXPECT_EQ(refused.send.at(0).message.rejected().message(),
            "node a sent no job spec, and names no allocation of a submitted job");
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
  for (uint32_t i = 0; i < 3; ++i) Send(2, StartedFrom({"train", "a", 1, 1}, i));
  for (uint32_t i = 0; i < 2; ++i) Send(1, StartedFrom({"train", "b", 1, 1}, i));
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
  Send(1, cancel);
  const std::string message = core_.Status(now_, "train")->verdict().message();
  EXPECT_EQ(message.find("stop\\x1b[2J\\nxxx"), 0u);
  EXPECT_LE(message.size(), 300u);
}

TEST_F(CoreTest, WhatHadFailedBeforeAUserCancelledIsKept) {
  Join(1, SpecOf("train", 1, 1, 3), "a", 2);
  Send(1, ExitedFrom({"train", "a", 1, 1}, 0, 3, 0));
  Step(JobCancelled{"train", "enough", 0});
  Send(1, StoppedFrom({"train", "a", 1, 1}));
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
    return Send(stream, message);
  };
  enter(1, "a", 0);
  Send(1, ExitedFrom({"train", "a", 1, 1}, 0, 0, 0));
  v1::NodeMessage leave = MessageFrom({"train", "a", 1, 1});
  leave.mutable_leave();
  Send(1, leave);
  EXPECT_EQ(core_.Status(now_, "train")->phase(), v1::RUNNING);
  EXPECT_FALSE(Has(enter(2, "b", 1), v1::ServerMessage::kStore));
}

TEST_F(CoreTest, ARenewalIsSilent) {
  Join(1, SpecOf("train", 2, 2, 0), "a");
  v1::NodeMessage renew = MessageFrom({"train", "a", 1, 0});
  renew.mutable_renew();
  const Effects effects = Send(1, renew);
  EXPECT_TRUE(effects.send.empty() && effects.append.empty() && effects.notes.empty());
}

TEST_F(CoreTest, AFinishedNodeThatStaysIsLetGo) {
  Join(1, SpecOf("train", 1, 1, 0), "a");
  Send(1, ExitedFrom({"train", "a", 1, 1}, 0, 0, 0));
  const MonoTime let_go = now_ + CoreConfig().lease;
  TickUntil(let_go + absl::Microseconds(-1));
  ASSERT_NE(core_.NextDeadline(), MonoTime::Never());
  now_ = let_go;
  EXPECT_EQ(ClosedWith(Step(Tick{})), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(core_.NextDeadline(), MonoTime::Never());
}

// Limits: of jobs, slots, evidence, what is remembered, and what large jobs are sent.

using CoreLimitsTest = CoreRig;

TEST_F(CoreLimitsTest, TheEvidenceOfAFailureIsBounded) {
  Join(1, SpecOf("train", 1, 1, 0), "a");
  v1::NodeMessage exited = ExitedFrom({"train", "a", 1, 1}, 0, 1, 0);
  exited.mutable_worker_exited()->mutable_exit()->set_last_lines(std::string(100000, 'x'));
  exited.mutable_worker_exited()->mutable_exit()->set_error_json(std::string(100000, 'x'));
  Send(1, exited);
  Send(1, StoppedFrom({"train", "a", 1, 1}));
  const v1::WorkerExit exit = core_.Status(now_, "train")->verdict().root_cause().exit();
  EXPECT_EQ(exit.last_lines().size(), 4096u);
  EXPECT_TRUE(exit.error_json().empty());
}

TEST_F(CoreLimitsTest, CollateralIsBounded) {
  Join(1, SpecOf("train", 1, 1, 0), "a", 40);
  for (uint32_t i = 0; i < 40; ++i) Send(1, ExitedFrom({"train", "a", 1, 1}, i, 1, 0));
  Send(1, StoppedFrom({"train", "a", 1, 1}));
  const v1::Verdict verdict = core_.Status(now_, "train")->verdict();
  EXPECT_EQ(verdict.root_cause().rank(), 0);
  EXPECT_EQ(verdict.collateral_size(), 16);
  EXPECT_EQ(verdict.collateral(0).rank(), 1);
}

// Fault (display): A thousand jobs have failed -> `cadre status` works, and its list has one line
// of each ended job's verdict
TEST_F(CoreLimitsTest, AListHasLittleOfEachJobThatEnded) {
  for (uint64_t i = 1; i <= 1000; ++i) {
    const std::string name = absl::StrCat("job", i);
    Join(i, SpecOf(name, 1, 1, 0), "a", 2);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      v1::NodeMessage exited = ExitedFrom({name, "a", 1, 1}, rank, 1, 0);
      v1::WorkerExit* exit = exited.mutable_worker_exited()->mutable_exit();
      exit->set_last_lines(std::string(4000, 'x'));
      exit->set_error_json(std::string(60000, 'x'));
      Send(i, exited);
    }
    Send(i, StoppedFrom({name, "a", 1, 1}));
    Step(StreamClosed{StreamId{i}});
  }
  v1::ListJobsReply list;
  for (const v1::JobStatus& job : core_.AllStatuses(now_)) *list.add_jobs() = job;
  ASSERT_EQ(list.jobs_size(), 1000);
  // The limit of a message that older commands accept.
  EXPECT_LT(list.ByteSizeLong(), 1u << 20);
  const v1::JobStatus& listed = list.jobs(0);
  EXPECT_EQ(listed.phase(), v1::FAILED);
  EXPECT_EQ(listed.nodes_in(), 1u);
  EXPECT_EQ(listed.nodes_size(), 0);
  EXPECT_EQ(listed.verdict().collateral_size(), 0);
  EXPECT_EQ(listed.verdict().root_cause().exit().exit_code(), 1);
  // The status of a single job is complete.
  const v1::JobStatus whole = *core_.Status(now_, listed.name());
  EXPECT_EQ(whole.verdict().message(), listed.verdict().message());
  EXPECT_EQ(whole.verdict().collateral_size(), 1);
  EXPECT_EQ(whole.verdict().root_cause().exit().last_lines().size(), 4000u);
}

TEST_F(CoreLimitsTest, EndedJobsAreForgottenOldestFirst) {
  for (uint64_t i = 1; i <= 1003; ++i) {
    const std::string name = absl::StrCat("job", i);
    Join(i, SpecOf(name, 1, 1, 0), "a");
    Step(JobCancelled{name, "", 0});
    // A new job's generations continue after those of dropped jobs.
    EXPECT_EQ(core_.Status(now_, name)->generation(), i <= 1001 ? 1u : 2u) << i;
    Send(i, StoppedFrom({name, "a", 1, core_.Status(now_, name)->generation()}));
    Step(StreamClosed{StreamId{i}});
  }
  EXPECT_EQ(core_.AllStatuses(now_).size(), 1000u);
  EXPECT_FALSE(core_.Status(now_, "job3").ok());
  EXPECT_TRUE(core_.Status(now_, "job4").ok());
  EXPECT_TRUE(core_.CheckInvariants().ok()) << core_.CheckInvariants();
}

// Fault (queue): A user makes many jobs end -> The records of other users' ended jobs stay
TEST_F(CoreLimitsTest, WhoHasFewEndedJobsKeepsThem) {
  v1::JobSpec spec = SpecOf("anns", 1, 1, 0);
  spec.add_command("./train");
  const auto run = [&](const std::string& name, const std::string& user) {
    spec.set_name(name);
    Step(JobSubmitted{spec, user, ""});
    Step(JobCancelled{name, "", 0});
  };
  run("anns", "ann");
  for (int i = 1; i <= 1500; ++i) run(absl::StrCat("bobs", i), "bob");
  EXPECT_EQ(core_.AllStatuses(now_).size(), 1000u);
  EXPECT_TRUE(core_.Status(now_, "anns").ok());
  EXPECT_FALSE(core_.Status(now_, "bobs501").ok());
  EXPECT_TRUE(core_.Status(now_, "bobs502").ok());
  EXPECT_TRUE(core_.CheckInvariants().ok()) << core_.CheckInvariants();
}

// Fault (queue): A user fills the queue with jobs -> That user's further jobs are refused, and
// other users have room left
TEST_F(CoreLimitsTest, AServerHasSoManyLiveJobs) {
  for (uint64_t i = 1; i <= 5000; ++i) {
    Join(i, SpecOf(absl::StrCat("job", i), 2, 2, 0), "a");
  }
  EXPECT_EQ(ClosedWith(Join(20000, SpecOf("one-more", 2, 2, 0), "a")),
            absl::StatusCode::kResourceExhausted);
  // That leaves room for submitted jobs, of which each user has a share.
  v1::JobSpec spec = SpecOf("one-more", 2, 2, 0);
  spec.add_command("./train");
  for (int user = 0; user < 5; ++user) {
    EXPECT_TRUE(core_.MaySubmit(spec, absl::StrCat("user", user)).ok());
    for (int i = 0; i < 1000; ++i) {
      v1::Record record;
      record.set_job(absl::StrCat("user", user, "-", i));
      saved::Job* job = record.mutable_job_created()->mutable_job();
      *job->mutable_spec() = spec;
      job->mutable_spec()->set_name(record.job());
      job->mutable_submission()->set_user(absl::StrCat("user", user));
      core_.Apply(record);
    }
  }
  EXPECT_EQ(core_.MaySubmit(spec, "user0").message(),
            "user user0 has 1000 jobs that have not ended, and may have no more at once; wait for "
            "some to end, or cancel them");
  EXPECT_EQ(core_.MaySubmit(spec, "ann").message(), "the server has 10000 jobs already");
  v1::Record ended;
  ended.set_job("user0-7");
  ended.mutable_job_ended()->mutable_verdict()->set_outcome(v1::CANCELLED_PHASE);
  core_.Apply(ended);
  EXPECT_TRUE(core_.MaySubmit(spec, "user0").ok());
  EXPECT_TRUE(core_.MaySubmit(spec, "ann").ok());
}

v1::JobSpec LargeSpec(const std::string& name) {
  v1::JobSpec spec = SpecOf(name, 2, 2, 0);
  spec.add_command("./train");
  (*spec.mutable_env())["DATA"] = std::string(500 << 10, 'x');
  return spec;
}

// Without this limit the specs of one user made every snapshot of the state take a minute.
//
// Fault (queue): A user submits many specs of 500 KiB -> 64 MiB of them are accepted, then that
// user's next one is refused; other users' are not
TEST_F(CoreLimitsTest, AUserHasSoManyBytesOfSpecsAndOthersTheirOwn) {
  int taken = 0;
  while (taken < 1000 && core_.MaySubmit(LargeSpec("one-more"), "ann").ok()) {
    Step(JobSubmitted{LargeSpec(absl::StrCat("ann", taken++)), "ann", ""});
  }
  EXPECT_EQ(taken, 131);
  const std::string refused(core_.MaySubmit(LargeSpec("one-more"), "ann").message());
  EXPECT_THAT(refused, testing::StartsWith("user ann has 63.9"));
  EXPECT_THAT(refused, testing::HasSubstr("; the limit (specs of a user) is 64 MiB: "));
  EXPECT_TRUE(core_.MaySubmit(LargeSpec("one-more"), "bob").ok());
  // The limit also holds for jobs that ann's nodes would bring.
  v1::NodeMessage join = JoinFrom({"brought", "a", 1, 0}, LargeSpec("brought"), 1);
  join.mutable_join()->mutable_caller()->set_user("ann");
  EXPECT_EQ(ClosedWith(Send(1, join)), absl::StatusCode::kResourceExhausted);
  Step(JobCancelled{"ann7", "", 0});
  EXPECT_TRUE(core_.MaySubmit(LargeSpec("one-more"), "ann").ok());
  EXPECT_TRUE(core_.CheckInvariants().ok()) << core_.CheckInvariants();
}

// Fault (queue): Jobs with large specs end -> The server drops their specs
TEST_F(CoreLimitsTest, EndedJobsHaveNoMoreOfTheirSpecsThanPeopleAreTold) {
  for (int i = 0; i < 100; ++i) {
    const std::string name = absl::StrCat("job", i);
    v1::JobSpec spec = LargeSpec(name);
    spec.add_command(std::string(10 << 10, 'y'));
    Step(JobSubmitted{spec, "ann", ""});
    Step(JobCancelled{name, "", 0});
  }
  size_t bytes = 0;
  Core again{CoreConfig()};
  for (const v1::Record& record : core_.Snapshot()) {
    bytes += record.ByteSizeLong();
    again.Apply(record);
  }
  EXPECT_LT(bytes, 100u << 10);
  EXPECT_EQ(again.DebugString(), core_.DebugString());
}

TEST_F(CoreLimitsTest, AJobHasSoManySlots) {
  const v1::JobSpec spec = SpecOf("train", 1000, 1000, 0);
  for (uint64_t i = 1; i <= 256; ++i) Join(i, spec, absl::StrCat("n", i), 4096);
  EXPECT_EQ(ClosedWith(Join(257, spec, "n257", 1)), absl::StatusCode::kResourceExhausted);
}

TEST_F(CoreLimitsTest, FourThousandNodesAreToldLittleEach) {
  const v1::JobSpec spec = SpecOf("train", 4096, 4096, 0);
  for (uint64_t i = 1; i <= 4096; ++i) {
    Pass(absl::Microseconds(100));
    Join(i, spec, absl::StrCat("n", i), 8);
  }
  EXPECT_EQ(core_.Status(now_, "train")->phase(), v1::RUNNING);
  EXPECT_EQ(records_, 1u + 4096 + 1);
  // Each node got a Welcome and an Assign; besides, at most 4,000 statuses were sent a second: the
  // nodes took 0.41 s to join.
  EXPECT_LE(messages_, 4096u * 2 + 2000u);
  // The remaining statuses are sent in time.
  EXPECT_LE(core_.NextDeadline(), now_ + 4096 * absl::Microseconds(250));
  now_ = core_.NextDeadline();
  EXPECT_EQ(Step(Tick{}).send.size(), 4096u);
}

TEST_F(CoreLimitsTest, SixtyFourNodesHearOfEachOtherByNameAndNotOfEachWorker) {
  const v1::JobSpec spec = SpecOf("train", 64, 64, 0);
  for (uint64_t i = 1; i <= 64; ++i) Join(i, spec, absl::StrCat("n", i), 8);
  messages_ = 0;
  for (uint64_t i = 1; i <= 64; ++i) {
    for (uint32_t worker = 0; worker < 8; ++worker) {
      Send(i, StartedFrom({"train", absl::StrCat("n", i), 1, 1}, worker));
    }
  }
  EXPECT_EQ(messages_, 0u);
  now_ = core_.NextDeadline();
  const Effects effects = Step(Tick{});
  ASSERT_EQ(effects.send.size(), 64u);
  EXPECT_EQ(effects.send[0].message.status().workers_running(), 512u);
  EXPECT_EQ(effects.send[0].message.status().nodes_size(), 64);
}

using ::testing::HasSubstr;

class CallerCheckTest : public CoreRig {
 protected:
  v1::NodeMessage JoinOf(const std::string& user, const std::string& node, uint64_t incarnation) {
    v1::NodeMessage message = JoinFrom({spec_.name(), node, incarnation, 0}, spec_, 2);
    if (!user.empty()) message.mutable_join()->mutable_caller()->set_user(user);
    return message;
  }
  static v1::NodeMessage Ended(v1::NodeMessage message) {
    message.mutable_join()->mutable_caller()->set_token_ended("the token of user ann ended");
    return message;
  }
  // Returns the status with which the stream is rejected; OK if it is welcomed.
  absl::Status AnswerTo(uint64_t stream, const v1::NodeMessage& message) {
    const Effects effects = Send(stream, message);
    for (const SendToStream& send : effects.send) {
      if (!(send.stream == StreamId{stream})) continue;
      if (send.message.has_welcome()) return absl::OkStatus();
      if (send.message.has_rejected()) {
        return absl::Status(static_cast<absl::StatusCode>(send.message.rejected().code()),
                            send.message.rejected().message());
      }
    }
    return absl::UnknownError("nothing was said");
  }

  const v1::JobSpec spec_ = SpecOf("train", 2, 2, 0);
};

TEST_F(CallerCheckTest, WithATokenThatHasEndedNothingBeginsAndWhatRunsComesBack) {
  EXPECT_THAT(AnswerTo(1, Ended(JoinOf("ann", "a", 5))),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("ended")));
  EXPECT_THAT(core_.Status(now_, "train"), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_OK(AnswerTo(2, JoinOf("ann", "a", 5)));
  Step(StreamClosed{StreamId{2}});
  // A job may outlive the token that started it.
  EXPECT_OK(AnswerTo(3, Ended(JoinOf("ann", "a", 5))));
  // Another process on that node, or another node, would join as a new one.
  EXPECT_THAT(AnswerTo(4, Ended(JoinOf("ann", "a", 6))),
              StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_THAT(AnswerTo(5, Ended(JoinOf("ann", "b", 5))),
              StatusIs(absl::StatusCode::kUnauthenticated));
}

TEST_F(CallerCheckTest, AJobThatNodesBringIsTheirUsersOrTheAdministrators) {
  ASSERT_OK(AnswerTo(1, JoinOf("ann", "a", 5)));
  EXPECT_EQ(*core_.OwnerOf("train"), "ann");
  EXPECT_EQ(core_.Status(now_, "train")->started_by(), "ann");
  EXPECT_THAT(AnswerTo(2, JoinOf("bob", "b", 6)),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("job train is ann's, and this is the token of user bob; take "
                                 "another name with --job-name")));
  // An administrator adds a node, and the job still belongs to ann.
  ASSERT_OK(AnswerTo(3, JoinOf("", "b", 6)));
  EXPECT_EQ(*core_.OwnerOf("train"), "ann");
}

TEST_F(CallerCheckTest, AnEndedJobKeepsItsNameForItsUser) {
  ASSERT_OK(AnswerTo(1, JoinOf("ann", "a", 5)));
  Step(JobCancelled{"train", "enough", 0});
  ASSERT_EQ(core_.Status(now_, "train")->phase(), v1::CANCELLED_PHASE);
  Step(StreamClosed{StreamId{1}});
  EXPECT_THAT(AnswerTo(2, JoinOf("bob", "c", 7)),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("job train, which has ended, is ann's")));
  ASSERT_OK(AnswerTo(3, JoinOf("ann", "a", 8)));
  EXPECT_EQ(core_.Status(now_, "train")->phase(), v1::GATHERING);
}

TEST_F(CallerCheckTest, WhatAnAdministratorBeganIsNoUsers) {
  ASSERT_OK(AnswerTo(1, JoinOf("", "a", 5)));
  EXPECT_EQ(*core_.OwnerOf("train"), "");
  EXPECT_THAT(AnswerTo(2, JoinOf("ann", "b", 6)),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("is the administrators'")));
}

TEST_F(CallerCheckTest, TheOwnerOutlivesTheServer) {
  ASSERT_OK(AnswerTo(1, JoinOf("ann", "a", 5)));
  Core anew((CoreConfig()));
  for (const v1::Record& record : core_.Snapshot()) anew.Apply(record);
  EXPECT_EQ(*anew.OwnerOf("train"), "ann");
  EXPECT_EQ(anew.OwnerOf("none"), nullptr);
}

TEST_F(CallerCheckTest, AUserKeepsNobodyOutWithJobsThatNodesBring) {
  const auto begin = [&](int number) {
    const v1::JobSpec spec = SpecOf(absl::StrCat("job", number), 2, 2, 0);
    v1::NodeMessage message = JoinFrom({spec.name(), "a", 5, 0}, spec, 2);
    message.mutable_join()->mutable_caller()->set_user("ann");
    return AnswerTo(number, message);
  };
  for (int i = 1; i <= 1000; ++i) ASSERT_OK(begin(i));
  EXPECT_THAT(begin(1001), StatusIs(absl::StatusCode::kResourceExhausted,
                                    HasSubstr("user ann has 1000 jobs that have not ended")));
  EXPECT_OK(AnswerTo(1002, JoinOf("bob", "a", 5)));
}

class VersionCheckTest : public CoreRig {
 protected:
  // Returns a Join of version 0.MINOR.
  v1::NodeMessage JoinOf(uint32_t minor, const v1::JobSpec& spec, const std::string& node = "a") {
    v1::NodeMessage message = JoinFrom({spec.name(), node, 5, 0}, spec, 2);
    message.mutable_join()->mutable_version()->set_minor(minor);
    message.mutable_join()->mutable_version()->clear_program();
    return message;
  }
  // Returns the first message that the stream is sent.
  v1::ServerMessage AnswerTo(uint64_t stream, const v1::NodeMessage& message) {
    for (const SendToStream& send : Send(stream, message).send) {
      if (send.stream == StreamId{stream}) return send.message;
    }
    ADD_FAILURE() << "nothing was said";
    return {};
  }

  const v1::JobSpec spec_ = SpecOf("train", 3, 3, 0);
};

TEST_F(VersionCheckTest, NeighboursAreWelcomedAndToldTheServersVersion) {
  const v1::ServerMessage welcome = AnswerTo(1, JoinOf(rpc::kMinorVersion - 1, spec_));
  ASSERT_TRUE(welcome.has_welcome());
  EXPECT_EQ(welcome.welcome().version().minor(), rpc::kMinorVersion);
  EXPECT_TRUE(AnswerTo(2, JoinOf(rpc::kMinorVersion, spec_, "b")).has_welcome());
  const v1::JobStatus status = *core_.Status(now_, "train");
  ASSERT_EQ(status.nodes_size(), 2);
  EXPECT_EQ(status.nodes(0).version(), absl::StrCat("0.", rpc::kMinorVersion - 1));
  EXPECT_TRUE(AnswerTo(3, JoinOf(rpc::kMinorVersion + 1, spec_, "c")).has_welcome());
}

// Fault (versions): A node or launcher is more than one minor version away from the server -> It is
// refused with one line that says what to upgrade, and no job is made
TEST_F(VersionCheckTest, OthersAreRefused_AndTheJobIsNotMade) {
  const v1::ServerMessage refusal = AnswerTo(1, JoinOf(rpc::kMinorVersion + 2, spec_));
  EXPECT_EQ(refusal.rejected().code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_THAT(refusal.rejected().message(), HasSubstr("upgrade the server to 0."));
  v1::NodeMessage unversioned = JoinOf(2, spec_);
  unversioned.mutable_join()->clear_version();
  EXPECT_THAT(AnswerTo(2, unversioned).rejected().message(), HasSubstr("this node of 0.2,"));
  EXPECT_THAT(core_.Status(now_, "train"), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace

}  // namespace cadre
