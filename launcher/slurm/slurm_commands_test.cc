// Tests the parsing of Slurm's output, and how its commands are run.
#include "launcher/slurm/slurm_commands.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

// The output of Slurm 22.05.
constexpr char kFailed[] = R"(JobId=12 JobName=mnist
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   Priority=4294901759 Nice=0 Account=(null) QOS=(null)
   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=3:0
   RunTime=00:00:02 TimeLimit=UNLIMITED TimeMin=N/A
   SubmitTime=1795300000 EligibleTime=1795300000
   StartTime=1795300001 EndTime=1795300003 Deadline=N/A
   Partition=all AllocNode:Sid=host:1234
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=node[1-2]
   BatchHost=node1
   NumNodes=2 NumCPUs=2 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   Command=/home/a user/logs/mnist/job.sh
   WorkDir=/home/a user
   StdErr=/home/a user/slurm-12.out
   StdIn=/dev/null
   StdOut=/home/a user/slurm-12.out
   Power=
)";

SlurmJob In(const std::string& state, const std::string& exit) {
  const auto job = ParseSlurmJob(absl::StrReplaceAll(
      kFailed, {{"JobState=FAILED", absl::StrCat("JobState=", state)}, {"=3:0", "=" + exit}}));
  EXPECT_OK(job);
  return job.ok() ? *job : SlurmJob();
}

TEST(SlurmJobTest, ScontrolsWords) {
  const auto job = ParseSlurmJob(kFailed);
  ASSERT_OK(job);
  EXPECT_EQ(job->number, "12");
  EXPECT_FALSE(job->array);
  EXPECT_EQ(job->name, "mnist");
  EXPECT_EQ(job->state, "FAILED");
  EXPECT_EQ(job->reason, "NonZeroExitCode");
  EXPECT_EQ(job->exit_code, 3);
  EXPECT_EQ(job->exit_signal, 0);
  EXPECT_EQ(job->nodes, "node[1-2]");
  EXPECT_EQ(job->script, "/home/a user/logs/mnist/job.sh");
  EXPECT_EQ(job->standard_output, "/home/a user/slurm-12.out");
  EXPECT_EQ(job->standard_error, "/home/a user/slurm-12.out");
  EXPECT_EQ(job->started, absl::FromUnixSeconds(1795300001));
}

TEST(SlurmJobTest, TasksOfAnArray) {
  const auto of = [](const std::string& numbers) {
    const auto job = ParseSlurmJob(absl::StrReplaceAll(kFailed, {{"JobId=12", numbers}}));
    EXPECT_OK(job);
    return job.ok() ? *job : SlurmJob();
  };
  const std::string one = "JobId=13 ArrayJobId=12 ArrayTaskId=7";
  EXPECT_EQ(of(one).number, "13_7");
  EXPECT_FALSE(of(one).array);
  EXPECT_TRUE(of("JobId=12 ArrayJobId=12 ArrayTaskId=1-3").array);
  const auto both = ParseSlurmJob(absl::StrCat(
      absl::StrReplaceAll(kFailed, {{"JobId=12", one}}), "\n",
      absl::StrReplaceAll(kFailed, {{"JobId=12", "JobId=12 ArrayJobId=12 ArrayTaskId=8"}})));
  ASSERT_OK(both);
  EXPECT_TRUE(both->array);
}

TEST(SlurmJobTest, OtherTextIsRefused) {
  for (const char* text : {"", "No jobs in the system", "JobState=RUNNING", "ExitCode=0:0"}) {
    EXPECT_THAT(ParseSlurmJob(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("scontrol show job")))
        << text;
  }
}

TEST(SlurmJobTest, WhatNobodyKnowsIsEmpty) {
  const auto job = ParseSlurmJob(
      "JobState=PENDING Reason=None ExitCode=0:0\n StartTime=Unknown\n NodeList=(null)\n");
  ASSERT_OK(job);
  EXPECT_EQ(job->reason, "");
  EXPECT_EQ(job->nodes, "");
  EXPECT_EQ(job->started, absl::InfiniteFuture());
  EXPECT_EQ(StateText(*job), "is pending");
}

TEST(SlurmJobTest, EndsAndTheirStatus) {
  const struct {
    const char* state;
    const char* exit;
    int status;
  } kCases[] = {{"COMPLETED", "0:0", 0},  {"FAILED", "3:0", 3},       {"FAILED", "0:9", 137},
                {"TIMEOUT", "0:15", 124}, {"CANCELLED", "0:15", 143}, {"NODE_FAIL", "0:0", 75},
                {"PREEMPTED", "0:0", 75}, {"OUT_OF_MEMORY", "0:0", 1}};
  for (const auto& one : kCases) {
    const SlurmJob job = In(one.state, one.exit);
    EXPECT_TRUE(HasEnded(job)) << one.state;
    EXPECT_EQ(ExitStatusOf(job), one.status) << one.state << " " << one.exit;
  }
  for (const char* state : {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED"}) {
    EXPECT_FALSE(HasEnded(In(state, "0:0"))) << state;
  }
}

TEST(SlurmJobTest, Text) {
  EXPECT_EQ(StateText(In("PENDING", "0:0")), "is pending: NonZeroExitCode");
  EXPECT_EQ(StateText(In("RUNNING", "0:0")), "runs on node[1-2]");
  EXPECT_EQ(StateText(In("COMPLETING", "0:0")), "is completing: NonZeroExitCode");
  EXPECT_EQ(StateText(In("TIMEOUT", "0:0")), "ended: TIMEOUT");
}

// The output of Slurm 22.05.
constexpr char kShown[] =
    "NodeName=n1 Arch=x86_64 CoresPerSocket=4 \n"
    "   CPUAlloc=0 CPUEfctv=4 CPUTot=4 CPULoad=0.1\n"
    "   NodeAddr=10.1.2.3 NodeHostName=host1 Version=22.05.8\n";

TEST(NodeAddressTest, OfAliases) {
  constexpr char kAliases[] = "ec0:1.2.3.4:foo,ec1:[fd00::7]:bar,ec10:1.2.3.5";
  EXPECT_EQ(AddressInAliases(kAliases, "ec0"), "1.2.3.4");
  EXPECT_EQ(AddressInAliases(kAliases, "ec1"), "fd00::7");
  EXPECT_EQ(AddressInAliases(kAliases, "ec10"), "1.2.3.5");
  EXPECT_EQ(AddressInAliases(kAliases, "ec"), "");
  EXPECT_EQ(AddressInAliases("", "ec0"), "");
  EXPECT_EQ(AddressInAliases("(null)", "ec0"), "");
  EXPECT_EQ(AddressInAliases("ec0:[", "ec0"), "");
}

TEST(NodeAddressTest, OfAShownNode) {
  EXPECT_EQ(AddressInShownNode(kShown, "n1"), "10.1.2.3");
  EXPECT_EQ(AddressInShownNode("NodeName=n1\n   NodeAddr=n1 NodeHostName=n1", "n1"), "");
  EXPECT_EQ(AddressInShownNode("Node n7 not found", "n7"), "");
}

TEST(NodeAddressTest, ScontrolIsAskedWhereTheAliasesDoNotSay) {
  const std::string directory = testing::TempDir() + "/bin_XXXXXX";
  std::string made = directory;
  ASSERT_NE(mkdtemp(made.data()), nullptr);
  std::ofstream(made + "/scontrol")
      << "#!/bin/sh\n[ \"$*\" = 'show node n1' ] || exit 1\ncat <<'EOF'\n"
      << kShown << "EOF\n";
  ASSERT_EQ(chmod((made + "/scontrol").c_str(), 0755), 0);
  const std::string path = getenv("PATH");
  setenv("PATH", (made + ":" + path).c_str(), 1);
  EXPECT_EQ(SlurmNodeAddress("", "n1"), "10.1.2.3");
  EXPECT_EQ(SlurmNodeAddress("n1:10.9.9.9:x", "n1"), "10.9.9.9");
  EXPECT_EQ(SlurmNodeAddress("", "n2"), "");
  setenv("PATH", path.c_str(), 1);
}

constexpr absl::Duration kPatience = absl::Minutes(1);

TEST(ProgramOutputTest, BothStreamsAndTheStatus) {
  const auto output =
      RunProgram({"sh", "-c", "echo out; echo one >&2; echo two >&2; exit 3"}, kPatience);
  ASSERT_OK(output);
  EXPECT_EQ(output->status, 3);
  EXPECT_EQ(output->standard_output, "out\n");
  EXPECT_EQ(ErrorLine(*output), "one; two");
}

TEST(ProgramOutputTest, KilledBySignal) {
  const auto output = RunProgram({"sh", "-c", "kill -9 $$"}, kPatience);
  ASSERT_OK(output);
  EXPECT_EQ(output->status, 137);
  EXPECT_EQ(ErrorLine(*output), "exit status 137");
}

TEST(ProgramOutputTest, NoSuchProgram) {
  EXPECT_THAT(RunProgram({"no-such-program-here"}, kPatience).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no-such-program-here")));
}

TEST(ProgramOutputTest, OneThatHangsIsKilledWithItsChildren) {
  EXPECT_THAT(
      RunProgram({"sh", "-c", "sleep 600 & sleep 600"}, absl::Milliseconds(200)).status(),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("sh did not end within 200ms")));
}

}  // namespace
}  // namespace cadre::launcher
