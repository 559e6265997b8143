// Tests what scontrol is asked for, and its texts.
#include "launcher/slurm/scontrol_text.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/slurm/job_record_for_test.h"
#include "launcher/slurm/slurm_commands.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using What = ScontrolRequest::What;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

absl::StatusOr<ScontrolRequest> Asked(const std::vector<std::string>& arguments) {
  return ReadScontrol(arguments, TestNow(), absl::UTCTimeZone());
}

ScontrolRequest Read(const std::vector<std::string>& arguments) {
  const auto request = Asked(arguments);
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

TEST(ScontrolTextTest, ChangesOfJobs) {
  const auto ids = [](const ScontrolRequest& request) {
    std::vector<std::string> texts;
    for (const WantedId& id : request.ids) texts.push_back(id.Text());
    return texts;
  };
  EXPECT_EQ(Read({"hold", "57"}).what, What::kHold);
  EXPECT_EQ(Read({"uhold", "57"}).what, What::kHold);
  EXPECT_THAT(ids(Read({"release", "57,58_[1-2]", "jobid=59"})),
              ElementsAre("57", "58_1", "58_2", "59"));
  EXPECT_EQ(Read({"requeue", "57_3"}).what, What::kRequeue);
  EXPECT_EQ(Read({"requeuehold", "57"}).what, What::kRequeueHold);
  EXPECT_THAT(Read({"hold", "JobName=train"}).names, ElementsAre("train"));
  const ScontrolRequest update =
      Read({"update", "JobId=57", "TimeLimit+=30", "StartTime=now+1hour", "ReqNodeList=n[1-2]",
            "ExcNodeList=n3", "Features=a&b", "Nice=5"});
  EXPECT_EQ(update.what, What::kUpdate);
  EXPECT_THAT(ids(update), ElementsAre("57"));
  EXPECT_EQ(update.change.limit, absl::Minutes(30));
  EXPECT_EQ(update.change.limit_sign, 1);
  EXPECT_EQ(update.change.begin, TestNow() + absl::Hours(1));
  EXPECT_EQ(update.change.priority, -5);
  EXPECT_THAT(*update.change.nodes, ElementsAre("n1", "n2"));
  EXPECT_THAT(*update.change.exclude, ElementsAre("n3"));
  EXPECT_THAT(*update.change.labels, ElementsAre("a", "b"));
  EXPECT_EQ(Read({"update", "job=57", "priority=0"}).change.held, true);
  EXPECT_EQ(Read({"update", "job=57", "priority=3"}).change.held, false);
}

TEST(ScontrolTextTest, Refused) {
  EXPECT_THAT(Asked({"top", "57"}),
              StatusIs(kInvalid,
                       "error: top: not yet; an administrator can say 'scontrol update JobId=ID "
                       "Priority=N'"));
  EXPECT_THAT(Asked({"hold"}), StatusIs(kInvalid,
                                        "error: hold: no job is named; expected the id "
                                        "of one"));
  EXPECT_THAT(Asked({"release", "train"}),
              StatusIs(kInvalid, "error: Invalid job id specified: train"));
  EXPECT_THAT(Asked({"requeue", "57.0"}), StatusIs(kInvalid, HasSubstr("not a step")));
  EXPECT_THAT(Asked({"update", "JobId=57"}), StatusIs(kInvalid, HasSubstr("no change is named")));
  EXPECT_THAT(Asked({"update", "TimeLimit=5"}), StatusIs(kInvalid, HasSubstr("as JobId=57")));
  EXPECT_THAT(Asked({"update", "JobId=57", "TimeLimit=soon"}),
              StatusIs(kInvalid, HasSubstr("error: update: TimeLimit: expected a time")));
  EXPECT_THAT(Asked({"update", "JobId=57", "QOS=high"}),
              StatusIs(kInvalid, HasSubstr("error: update: QOS: not yet; TimeLimit, Priority")));
  EXPECT_THAT(Asked({"update", "JobId=57", "x"}),
              StatusIs(kInvalid, HasSubstr("expected NAME=VALUE")));
  EXPECT_THAT(Asked({"update", "node=n1", "state=drain"}),
              StatusIs(kInvalid, HasSubstr("'cadre drain NODE'")));
  EXPECT_THAT(Asked({"shwo", "job"}), StatusIs(kInvalid, HasSubstr("invalid keyword: shwo")));
  EXPECT_THAT(Asked({"show", "burstbuffer"}), StatusIs(kInvalid, HasSubstr("not yet")));
  EXPECT_THAT(Asked({"show", "hostlist"}), StatusIs(kInvalid));
  EXPECT_THAT(Asked({"show"}), StatusIs(kInvalid));
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

TEST(ScontrolTextTest, WhatTheServerTellsOfAJob) {
  v1::JobStatus job = TestJob(14, "sweep", v1::QUEUED);
  job.set_array(12);
  job.set_array_index(2);
  job.set_array_at_once(3);
  job.set_batch_name("sweep.sh");
  job.set_held(true);
  job.set_no_requeue(true);
  job.set_priority(5);
  job.set_queue_reason("JobHeldUser");
  job.set_min_nodes(2);
  job.set_cpus(16);
  job.set_gpus(4);
  job.set_workers(8);
  job.set_limit_us(absl::ToInt64Microseconds(absl::Hours(1)));
  job.set_begins_until_unix_ms(absl::ToUnixMillis(TestNow() + absl::Hours(2)));
  job.mutable_queue()->set_begin_unix_ms(absl::ToUnixMillis(TestNow() + absl::Hours(1)));
  job.mutable_queue()->set_deadline_unix_ms(absl::ToUnixMillis(TestNow() + absl::Hours(24)));
  v1::Dependency* const dependency = job.mutable_queue()->add_dependencies();
  dependency->set_kind(v1::Dependency::AFTER_OK);
  dependency->set_job(7);
  job.mutable_placement()->add_exclude("n9");
  job.mutable_placement()->add_labels("a100");
  job.set_command("/home/ann/sweep.sh");
  job.set_working_dir("/home/ann");
  job.set_stdout_file("slurm-%A_%a.out");
  EXPECT_EQ(JobDetails(RecordsOf({job}, {})[0], false, TestSurroundings()),
            "JobId=14 ArrayJobId=12 ArrayTaskId=2 ArrayTaskThrottle=3 JobName=sweep.sh\n"
            "   UserId=ann(1000) GroupId=(null) MCS_label=N/A\n"
            "   Priority=0 Nice=0 Account=(null) QOS=normal\n"
            "   JobState=PENDING Reason=JobHeldUser Dependency=afterok:7\n"
            "   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0\n"
            "   RunTime=00:00:00 TimeLimit=01:00:00 TimeMin=N/A\n"
            "   SubmitTime=2026-11-29T11:00:00 EligibleTime=2026-11-29T13:00:00\n"
            "   AccrueTime=2026-11-29T13:00:00\n"
            "   StartTime=2026-11-29T14:00:00 EndTime=2026-11-29T15:00:00 "
            "Deadline=2026-11-30T12:00:00\n"
            "   Partition=all\n"
            "   ReqNodeList=(null) ExcNodeList=n9\n"
            "   NodeList=(null)\n"
            "   NumNodes=2 NumCPUs=16 NumTasks=8 CPUs/Task=N/A\n"
            "   TRES=cpu=16,node=2,gres/gpu=4\n"
            "   Features=a100\n"
            "   OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)\n"
            "   Command=/home/ann/sweep.sh\n"
            "   WorkDir=/home/ann\n"
            "   StdErr=/home/ann/slurm-12_2.out\n"
            "   StdIn=/dev/null\n"
            "   StdOut=/home/ann/slurm-12_2.out\n\n");
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
