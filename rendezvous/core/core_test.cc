// What stories do not tell well: what the core refuses, its limits, pauses and large jobs.
#include "rendezvous/core/core.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/testing/test_messages.h"

namespace cadre {
namespace {

class CoreTest : public testing::Test {
 protected:
  Effects Step(const Event& event) {
    Effects effects = core_.Step(now_, event);
    records_ += effects.append.size();
    messages_ += effects.send.size();
    return effects;
  }
  // As a host that is never late.
  void TickUntil(MonoTime end) {
    while (core_.NextDeadline() <= end) {
      now_ = core_.NextDeadline();
      Step(Tick{});
    }
    now_ = end;
  }
  Effects Say(uint64_t stream, const v1::NodeMessage& message) {
    return Step(NodeSaid{StreamId{stream}, message});
  }
  Effects Join(uint64_t stream, const v1::JobSpec& spec, const std::string& node,
               uint32_t slots = 1, uint64_t incarnation = 1) {
    return Say(stream, JoinFrom({spec.name(), node, incarnation, 0}, spec, slots));
  }
  void Pass(absl::Duration duration) { now_ = now_ + duration; }
  // As a host does that steps whenever it is due.
  void Elapse(absl::Duration duration) {
    const MonoTime end = now_ + duration;
    while (now_ < end) {
      now_ = std::min(end, std::max(core_.NextDeadline(), now_ + absl::Microseconds(1)));
      Step(Tick{});
    }
  }

  static absl::StatusCode ClosedWith(const Effects& effects) {
    return effects.close.size() == 1 ? effects.close[0].status.code() : absl::StatusCode::kUnknown;
  }
  static bool Has(const Effects& effects, v1::ServerMessage::BodyCase body) {
    for (const SendToStream& send : effects.send) {
      if (send.message.body_case() == body) return true;
    }
    return false;
  }

  Core core_{CoreConfig()};
  MonoTime now_ = MonoTime::FromMicros(1000000);
  size_t records_ = 0;
  size_t messages_ = 0;
};

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

TEST_F(CoreTest, WhoWaitsIsToldOfARefusedNode) {
  Join(1, SpecOf("train", 2, 2, 0), "a");
  v1::JobSpec other = SpecOf("train", 2, 2, 0);
  other.add_command("--more");
  const Effects refused = Join(2, other, "b");
  EXPECT_TRUE(Has(refused, v1::ServerMessage::kStatus));
  EXPECT_THAT(core_.Status(now_, "train")->waiting_for(),
              testing::HasSubstr("node b was refused: command differs"));
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
  EXPECT_EQ(message.find("cancelled: stop\\x1b[2J\\nxxx"), 0u);
  EXPECT_LE(message.size(), 300u);
}

TEST_F(CoreTest, TheEvidenceOfAFailureIsBounded) {
  Join(1, SpecOf("train", 1, 1, 0), "a");
  v1::NodeMessage exited = ExitedFrom({"train", "a", 1, 1}, 0, 1, 0);
  exited.mutable_worker_exited()->mutable_exit()->set_last_lines(std::string(100000, 'x'));
  exited.mutable_worker_exited()->mutable_exit()->set_error_json(std::string(100000, 'x'));
  Say(1, exited);
  Say(1, StoppedFrom({"train", "a", 1, 1}));
  const v1::WorkerExit exit = core_.Status(now_, "train")->verdict().root_cause().exit();
  EXPECT_EQ(exit.last_lines().size(), 4096u);
  EXPECT_TRUE(exit.error_json().empty());
}

TEST_F(CoreTest, CollateralIsBounded) {
  Join(1, SpecOf("train", 1, 1, 0), "a", 40);
  for (uint32_t i = 0; i < 40; ++i) Say(1, ExitedFrom({"train", "a", 1, 1}, i, 1, 0));
  Say(1, StoppedFrom({"train", "a", 1, 1}));
  const v1::Verdict verdict = core_.Status(now_, "train")->verdict();
  EXPECT_EQ(verdict.root_cause().rank(), 0);
  EXPECT_EQ(verdict.collateral_size(), 16);
  EXPECT_EQ(verdict.collateral(0).rank(), 1);
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

TEST_F(CoreTest, EndedJobsAreForgottenOldestFirst) {
  for (uint64_t i = 1; i <= 1003; ++i) {
    const std::string name = absl::StrCat("job", i);
    Join(i, SpecOf(name, 1, 1, 0), "a");
    Step(JobCancelled{name, "", 0});
    Say(i, StoppedFrom({name, "a", 1, 1}));
    Step(StreamClosed{StreamId{i}});
  }
  EXPECT_EQ(core_.AllStatuses(now_).size(), 1000u);
  EXPECT_FALSE(core_.Status(now_, "job3").ok());
  EXPECT_TRUE(core_.Status(now_, "job4").ok());
  EXPECT_TRUE(core_.CheckInvariants().ok()) << core_.CheckInvariants();
}

TEST_F(CoreTest, WhoHasFewEndedJobsKeepsThem) {
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

TEST_F(CoreTest, AServerHasSoManyLiveJobs) {
  for (uint64_t i = 1; i <= 5000; ++i) {
    Join(i, SpecOf(absl::StrCat("job", i), 2, 2, 0), "a");
  }
  EXPECT_EQ(ClosedWith(Join(20000, SpecOf("one-more", 2, 2, 0), "a")),
            absl::StatusCode::kResourceExhausted);
  // Which leaves room for what is submitted, and each user a share of it.
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

TEST_F(CoreTest, AJobHasSoManySlots) {
  const v1::JobSpec spec = SpecOf("train", 1000, 1000, 0);
  for (uint64_t i = 1; i <= 256; ++i) Join(i, spec, absl::StrCat("n", i), 4096);
  EXPECT_EQ(ClosedWith(Join(257, spec, "n257", 1)), absl::StatusCode::kResourceExhausted);
}

TEST_F(CoreTest, FourThousandNodesAreToldLittleEach) {
  const v1::JobSpec spec = SpecOf("train", 4096, 4096, 0);
  for (uint64_t i = 1; i <= 4096; ++i) {
    Pass(absl::Microseconds(100));
    Join(i, spec, absl::StrCat("n", i), 8);
  }
  EXPECT_EQ(core_.Status(now_, "train")->phase(), v1::RUNNING);
  EXPECT_EQ(records_, 1u + 4096 + 1);
  // A Welcome and an Assign, and 4,000 statuses a second: the nodes took 0.41 s to come.
  EXPECT_LE(messages_, 4096u * 2 + 2000u);
  // What is left to say is said in time.
  EXPECT_LE(core_.NextDeadline(), now_ + 4096 * absl::Microseconds(250));
  now_ = core_.NextDeadline();
  EXPECT_EQ(Step(Tick{}).send.size(), 4096u);
}

TEST_F(CoreTest, SixtyFourNodesHearOfEachOtherByNameAndNotOfEachWorker) {
  const v1::JobSpec spec = SpecOf("train", 64, 64, 0);
  for (uint64_t i = 1; i <= 64; ++i) Join(i, spec, absl::StrCat("n", i), 8);
  messages_ = 0;
  for (uint64_t i = 1; i <= 64; ++i) {
    for (uint32_t worker = 0; worker < 8; ++worker) {
      Say(i, StartedFrom({"train", absl::StrCat("n", i), 1, 1}, worker));
    }
  }
  EXPECT_EQ(messages_, 0u);
  now_ = core_.NextDeadline();
  const Effects effects = Step(Tick{});
  ASSERT_EQ(effects.send.size(), 64u);
  EXPECT_EQ(effects.send[0].message.status().workers_running(), 512u);
  EXPECT_EQ(effects.send[0].message.status().nodes_size(), 64);
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
