// What is bounded: jobs, slots, evidence, what is remembered, what large jobs are told.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/core/core_rig.h"

namespace cadre {
namespace {

using CoreLimitsTest = CoreRig;

TEST_F(CoreLimitsTest, TheEvidenceOfAFailureIsBounded) {
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

TEST_F(CoreLimitsTest, CollateralIsBounded) {
  Join(1, SpecOf("train", 1, 1, 0), "a", 40);
  for (uint32_t i = 0; i < 40; ++i) Say(1, ExitedFrom({"train", "a", 1, 1}, i, 1, 0));
  Say(1, StoppedFrom({"train", "a", 1, 1}));
  const v1::Verdict verdict = core_.Status(now_, "train")->verdict();
  EXPECT_EQ(verdict.root_cause().rank(), 0);
  EXPECT_EQ(verdict.collateral_size(), 16);
  EXPECT_EQ(verdict.collateral(0).rank(), 1);
}

TEST_F(CoreLimitsTest, AListHasLittleOfEachJobThatEnded) {
  for (uint64_t i = 1; i <= 1000; ++i) {
    const std::string name = absl::StrCat("job", i);
    Join(i, SpecOf(name, 1, 1, 0), "a", 2);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      v1::NodeMessage exited = ExitedFrom({name, "a", 1, 1}, rank, 1, 0);
      v1::WorkerExit* exit = exited.mutable_worker_exited()->mutable_exit();
      exit->set_last_lines(std::string(4000, 'x'));
      exit->set_error_json(std::string(60000, 'x'));
      Say(i, exited);
    }
    Say(i, StoppedFrom({name, "a", 1, 1}));
    Step(StreamClosed{StreamId{i}});
  }
  v1::ListJobsReply list;
  for (const v1::JobStatus& job : core_.AllStatuses(now_)) *list.add_jobs() = job;
  ASSERT_EQ(list.jobs_size(), 1000);
  // What an older command takes.
  EXPECT_LT(list.ByteSizeLong(), 1u << 20);
  const v1::JobStatus& listed = list.jobs(0);
  EXPECT_EQ(listed.phase(), v1::FAILED);
  EXPECT_EQ(listed.nodes_in(), 1u);
  EXPECT_EQ(listed.nodes_size(), 0);
  EXPECT_EQ(listed.verdict().collateral_size(), 0);
  EXPECT_EQ(listed.verdict().root_cause().exit().exit_code(), 1);
  // Of one job all is told.
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
    // Behind those of jobs that are forgotten.
    EXPECT_EQ(core_.Status(now_, name)->generation(), i <= 1001 ? 1u : 2u) << i;
    Say(i, StoppedFrom({name, "a", 1, core_.Status(now_, name)->generation()}));
    Step(StreamClosed{StreamId{i}});
  }
  EXPECT_EQ(core_.AllStatuses(now_).size(), 1000u);
  EXPECT_FALSE(core_.Status(now_, "job3").ok());
  EXPECT_TRUE(core_.Status(now_, "job4").ok());
  EXPECT_TRUE(core_.CheckInvariants().ok()) << core_.CheckInvariants();
}

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

TEST_F(CoreLimitsTest, AServerHasSoManyLiveJobs) {
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

v1::JobSpec LargeSpec(const std::string& name) {
  v1::JobSpec spec = SpecOf(name, 2, 2, 0);
  spec.add_command("./train");
  (*spec.mutable_env())["DATA"] = std::string(500 << 10, 'x');
  return spec;
}

// One user's specs made every snapshot of the state take a minute, for all.
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
  // The same for those that ann's nodes would bring.
  v1::NodeMessage join = JoinFrom({"brought", "a", 1, 0}, LargeSpec("brought"), 1);
  join.mutable_join()->mutable_caller()->set_user("ann");
  EXPECT_EQ(ClosedWith(Say(1, join)), absl::StatusCode::kResourceExhausted);
  Step(JobCancelled{"ann7", "", 0});
  EXPECT_TRUE(core_.MaySubmit(LargeSpec("one-more"), "ann").ok());
  EXPECT_TRUE(core_.CheckInvariants().ok()) << core_.CheckInvariants();
}

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
  // A Welcome and an Assign, and 4,000 statuses a second: the nodes took 0.41 s to come.
  EXPECT_LE(messages_, 4096u * 2 + 2000u);
  // What is left to say is said in time.
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

}  // namespace
}  // namespace cadre
