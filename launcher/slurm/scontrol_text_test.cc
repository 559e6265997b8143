// Tests what scontrol is asked for, and its texts.
#include "launcher/slurm/scontrol_text.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/slurm/job_record_for_test.h"
#include "launcher/slurm/slurm_commands.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;
using What = ScontrolRequest::What;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

ScontrolRequest Read(const std::vector<std::string>& arguments) {
  const auto request = ReadScontrol(arguments);
  EXPECT_OK(request);
  return request.ok() ? *request : ScontrolRequest();
}

TEST(ScontrolTextTest, WhatIsAskedFor) {
  EXPECT_EQ(Read({"show", "hostnames"}).what, What::kHostNames);
  EXPECT_EQ(Read({"show", "hostname", "n[1-2]"}).which, "n[1-2]");
  EXPECT_EQ(Read({"show", "hostlist", "a,b"}).what, What::kHostList);
  EXPECT_EQ(Read({"show", "hostlistsorted", "a,b"}).what, What::kHostListSorted);
  EXPECT_EQ(Read({"show", "job", "57"}).what, What::kJobs);
  EXPECT_EQ(Read({"show", "jobid", "-dd", "57"}).which, "57");
  EXPECT_EQ(Read({"show", "job=57"}).which, "57");
  EXPECT_TRUE(Read({"-o", "show", "node"}).one_line);
  EXPECT_TRUE(Read({"show", "job", "57", "--json"}).json);
  EXPECT_EQ(Read({"sho", "part"}).what, What::kPartitions);
  EXPECT_EQ(Read({"show", "step", "57.0"}).what, What::kSteps);
  EXPECT_EQ(Read({"--version"}).what, What::kVersion);
  EXPECT_EQ(Read({}).what, What::kHelp);
}

TEST(ScontrolTextTest, Refused) {
  EXPECT_THAT(ReadScontrol({"requeue", "57"}),
              StatusIs(kInvalid,
                       "error: requeue: not yet; a job of a batch script is submitted "
                       "again with sbatch"));
  EXPECT_THAT(ReadScontrol({"update", "node=n1", "state=drain"}),
              StatusIs(kInvalid, HasSubstr("'cadre drain NODE'")));
  EXPECT_THAT(ReadScontrol({"shwo", "job"}),
              StatusIs(kInvalid, HasSubstr("invalid keyword: shwo")));
  EXPECT_THAT(ReadScontrol({"show", "burstbuffer"}), StatusIs(kInvalid, HasSubstr("not yet")));
  EXPECT_THAT(ReadScontrol({"show", "hostlist"}), StatusIs(kInvalid));
  EXPECT_THAT(ReadScontrol({"show"}), StatusIs(kInvalid));
}

TEST(ScontrolTextTest, Hosts) {
  EXPECT_EQ(*HostNames("n[1-3,5],m07"), "n1\nn2\nn3\nn5\nm07\n");
  EXPECT_THAT(HostNames("n[1-"), StatusIs(kInvalid));
  EXPECT_EQ(*HostList("n1,n2,n3,m07", false), "n[1-3],m07\n");
  EXPECT_EQ(*HostList("n10,n2,n1", true), "n[1-2,10]\n");
}

// ParseSlurmJob reads the output of Slurm's own scontrol.
TEST(ScontrolTextTest, AJobIsReadByThoseWhoReadSlurms) {
  v1::ListNodesReply nodes;
  GiveTestNode("n1", "train", 4, &nodes);
  GiveTestNode("n2", "train", 4, &nodes);
  v1::JobStatus job = TestJob(57, "train", v1::RUNNING);
  job.set_limit_us(absl::ToInt64Microseconds(absl::Hours(26)));
  const JobRecord record = RecordsOf({job}, nodes)[0];
  TextSurroundings at = TestSurroundings();
  at.time_format = "%s";
  const auto read = ParseSlurmJob(JobDetails(record, false, at));
  ASSERT_OK(read);
  EXPECT_EQ(read->number, "57");
  EXPECT_EQ(read->name, "train");
  EXPECT_EQ(read->state, "RUNNING");
  EXPECT_EQ(read->nodes, "n[1-2]");
  EXPECT_EQ(read->started, TestNow() - absl::Minutes(30));
}

TEST(ScontrolTextTest, LinesOfAJob) {
  v1::JobStatus job = TestJob(57, "train", v1::QUEUED);
  job.set_waiting_for("2 nodes with 4 CPUs free");
  const JobRecord record = RecordsOf({job}, {})[0];
  const std::string text = JobDetails(record, false, TestSurroundings());
  EXPECT_THAT(text, HasSubstr("JobId=57 JobName=train\n   UserId=ann(1000) GroupId=(null)"));
  EXPECT_THAT(text, HasSubstr("\n   JobState=PENDING Reason=Resources Dependency=(null)\n"));
  EXPECT_THAT(text, HasSubstr("\n   RunTime=00:00:00 TimeLimit=UNLIMITED TimeMin=N/A\n"));
  EXPECT_THAT(text, HasSubstr("\n   SubmitTime=2026-11-29T11:00:00 "));
  EXPECT_THAT(text, HasSubstr("\n   StartTime=Unknown EndTime=Unknown Deadline=N/A\n"));
  EXPECT_THAT(text, HasSubstr("\n   NodeList=(null)\n"));
  EXPECT_THAT(JobDetails(record, true, TestSurroundings()),
              HasSubstr("JobName=train UserId=ann(1000) "));
}

TEST(ScontrolTextTest, StepsNodesAndThePartition) {
  v1::ListNodesReply nodes;
  GiveTestNode("n1", "python", 4, &nodes);
  GiveTestNode("n2", "python", 4, &nodes);
  nodes.mutable_nodes(0)->set_gpus(2);
  nodes.mutable_nodes(1)->set_drained(true);
  nodes.mutable_nodes(1)->set_drain_reason("new fan");
  v1::JobStatus step = TestJob(58, "python", v1::RUNNING);
  step.set_step_of(57);
  EXPECT_THAT(StepDetails(RecordsOf({step}, nodes)[0], false, TestSurroundings()),
              HasSubstr("StepId=57.0 UserId=ann(1000) StartTime=2026-11-29T11:30:00 "));
  const std::vector<NodeRecord> records = NodesOf(nodes);
  EXPECT_THAT(NodeDetails(records[0], true),
              HasSubstr("CPUAlloc=8 CPUEfctv=8 CPUTot=8 CPULoad=N/A "));
  EXPECT_THAT(NodeDetails(records[0], true), HasSubstr(" Gres=gpu:2 NodeAddr=n1 "));
  EXPECT_THAT(NodeDetails(records[1], false), HasSubstr("\n   State=MIXED+DRAIN "));
  EXPECT_THAT(NodeDetails(records[1], false), HasSubstr("\n   Reason=new fan\n\n"));
  EXPECT_EQ(AddressInShownNode(NodeDetails(records[0], false), "n1"), "");
  EXPECT_THAT(PartitionDetails(records, false), HasSubstr("\n   Nodes=n[1-2]\n"));
}

}  // namespace
}  // namespace cadre::launcher
