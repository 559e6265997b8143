// Two servers with one etcd: whichever of the three dies, stands still or goes away, workers notice
// nothing, and nothing that was acknowledged is lost.
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "tests/faults/server_group.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

void PrintSince(const char* what, absl::Time begin) {
  printf("%s after %s\n", what,
         absl::FormatDuration(absl::Trunc(absl::Now() - begin, absl::Milliseconds(1))).c_str());
}

class FailoverTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!EtcdProcess::IsInstalled()) GTEST_SKIP() << "needs Debian's etcd-server";
    ASSERT_TRUE(group_.etcd().Start());
  }
  // Server 0 leads, server 1 is a standby.
  void StartServers(const std::string& kill = "") {
    ASSERT_TRUE(group_.Start(0, kill));
    ASSERT_TRUE(group_.AwaitLeads(0));
    ASSERT_TRUE(group_.Start(1));
    ASSERT_TRUE(
        group_.server(1).WaitForLine(absl::StrCat(group_.endpoint(0), " leads")).has_value());
  }
  void StartJob(const std::vector<std::string>& arguments) {
    for (int node = 0; node < 2; ++node) {
      nodes_.push_back(group_.StartNode(node, "2", arguments));
      ASSERT_NE(nodes_.back(), nullptr);
    }
  }
  // Both nodes, when all workers run and use the store.
  void StartStoreWorkers() {
    StartJob({kStoreWorker, done_});
    for (const auto& node : nodes_) {
      for (const ProbeLine& probe : NextProbes(*node, 2)) pids_.push_back(probe.pid);
    }
    ASSERT_EQ(pids_.size(), 4u) << OutputOf(*nodes_[0]) << OutputOf(*nodes_[1]);
  }
  void AwaitAgents() {
    for (const auto& node : nodes_) {
      EXPECT_TRUE(node->WaitForLine("reached the rendezvous server", absl::Seconds(30)).has_value())
          << OutputOf(*node);
    }
  }
  void ExpectWorkersAlive() {
    for (const pid_t pid : pids_) EXPECT_TRUE(IsAlive(pid)) << pid;
  }
  // The workers were never disturbed, and nothing of the store was lost or done twice.
  void FinishJob() {
    ExpectWorkersAlive();
    std::ofstream(done_) << "now";
    for (const auto& node : nodes_) {
      EXPECT_EQ(node->Wait(), 0) << OutputOf(*node);
      EXPECT_THAT(node->standard_output(), HasSubstr("store ok"));
      EXPECT_THAT(node->standard_output(), Not(HasSubstr("generation=2")));
    }
    printf("%s", nodes_[0]->standard_output().c_str());
  }

  ServerGroup group_{2};
  const std::string done_ = MakeTempDir("done") + "/done";
  std::vector<std::unique_ptr<Process>> nodes_;
  std::vector<pid_t> pids_;
};

// Fault (server): The leading server is killed, with etcd and a second server -> The second one
// leads within 5 s; workers are undisturbed, and store calls go on
TEST_F(FailoverTest, TheLeaderIsKilled_AndThenTheNextOne) {
  StartServers();
  StartStoreWorkers();
  for (const size_t leader : {0, 1}) {
    const size_t other = 1 - leader;
    const absl::Time killed = absl::Now();
    group_.Kill(leader);
    ASSERT_TRUE(group_.AwaitLeads(other));
    const absl::Duration elected = absl::Now() - killed;
    PrintSince("killed the leader: the next one leads", killed);
    AwaitAgents();
    PrintSince("its agents are back", killed);
    EXPECT_LT(elected, kNewLeaderWithin);
    ExpectWorkersAlive();
    ASSERT_TRUE(group_.Start(leader));
    ASSERT_TRUE(group_.server(leader)
                    .WaitForLine(absl::StrCat(group_.endpoint(other), " leads"))
                    .has_value());
  }
  FinishJob();
}

// Fault (server): The leading server is told to end, with etcd and a second server -> It hands
// over, and workers are undisturbed
TEST_F(FailoverTest, TheLeaderIsTold_ToEnd_AndHandsOver) {
  StartServers();
  StartStoreWorkers();
  const absl::Time begin = absl::Now();
  group_.server(0).Kill(SIGTERM);
  ASSERT_TRUE(group_.AwaitLeads(1));
  PrintSince("told the leader to end: the next one leads", begin);
  EXPECT_EQ(group_.server(0).Wait(), 0);
  AwaitAgents();
  FinishJob();
}

// It does not hang up, and when it goes on it still believes that it leads.
//
// Fault (server): The leading server stands still and goes on later, with etcd and a second server
// -> The second one leads; the first can write nothing and steps down
TEST_F(FailoverTest, TheLeaderStandsStill_AndIsDeposed) {
  StartServers();
  StartStoreWorkers();
  const absl::Time stopped = absl::Now();
  group_.server(0).Kill(SIGSTOP);
  ASSERT_TRUE(group_.AwaitLeads(1));
  PrintSince("stopped the leader: the next one leads", stopped);
  AwaitAgents();
  PrintSince("its agents are back", stopped);
  group_.server(0).Kill(SIGCONT);
  EXPECT_TRUE(group_.server(0).WaitForLine("no longer leads").has_value());
  EXPECT_TRUE(group_.server(0).WaitForLine(absl::StrCat(group_.endpoint(1), " leads")).has_value());
  FinishJob();
}

// Fault (state): etcd is restarted or unreachable for a moment -> Leases are renewed and changes
// refused, until the server goes on by itself
TEST_F(FailoverTest, EtcdIsStartedAnew_ChangesAreRefusedMeanwhile) {
  StartServers();
  StartStoreWorkers();
  group_.etcd().Kill();
  EXPECT_TRUE(group_.server(0).WaitForLine("refuses changes").has_value())
      << OutputOf(group_.server(0));
  ExpectWorkersAlive();
  ASSERT_TRUE(group_.etcd().Start());
  EXPECT_TRUE(group_.server(0).WaitForLine("state can be saved again").has_value())
      << OutputOf(group_.server(0));
  FinishJob();
  // Their heartbeats were taken all the while.
  for (const auto& node : nodes_) {
    EXPECT_THAT(node->standard_error(), Not(HasSubstr("lost the rendezvous server")));
  }
}

// Fault (state): etcd stays unreachable -> The server disconnects its agents, which keep their
// workers; all go on when etcd is back
TEST_F(FailoverTest, EtcdIsAwayForLong_WorkersStay) {
  StartServers();
  StartStoreWorkers();
  group_.etcd().Kill();
  EXPECT_TRUE(group_.server(0).WaitForLine("has not confirmed the lease").has_value())
      << OutputOf(group_.server(0));
  for (const auto& node : nodes_) {
    EXPECT_TRUE(node->WaitForLine("workers keep running").has_value()) << OutputOf(*node);
  }
  ASSERT_TRUE(group_.etcd().Start());
  AwaitAgents();
  FinishJob();
}

TEST_F(FailoverTest, CommandsFindTheServerThatLeads) {
  StartServers();
  StartStoreWorkers();
  const auto status =
      StartCadre({"status", "--server", absl::StrCat(group_.endpoint(1), ",", group_.endpoint(0)),
                  "--token-file", group_.token_file()});
  EXPECT_EQ(status->Wait(), 0) << OutputOf(*status);
  EXPECT_THAT(status->standard_output(), HasSubstr("job"));
  const auto refused =
      StartCadre({"status", "--server", group_.endpoint(1), "--token-file", group_.token_file()});
  EXPECT_EQ(refused->Wait(), 69) << OutputOf(*refused);
  EXPECT_THAT(refused->standard_error(),
              HasSubstr(absl::StrCat("is a standby: ", group_.endpoint(0), " leads")));
  FinishJob();
}

// The launchers serve; the one that leads dies with its node.
//
// Fault (server): The node whose launcher leads is killed, with etcd -> Another launcher leads, and
// the others form the next generation after the dead node's lease
TEST_F(FailoverTest, TheNodeWhoseLauncherLeadsIsKilled) {
  const std::string finish = absl::StrCat("until [ -e ", done_, " ]; do sleep 0.02; done");
  const std::vector<std::string> arguments = {
      "--etcd", group_.etcd().url(), "/bin/sh", "-c",
      absl::StrCat("echo \"probe rank=$RANK generation=$CADRE_GENERATION world=$WORLD_SIZE "
                   "pid=$$\"; ",
                   finish)};
  nodes_.push_back(group_.StartNode(0, "2:3", arguments));
  // It is in: who comes later does not lead.
  ASSERT_TRUE(nodes_[0]->WaitForLine("1 of").has_value()) << OutputOf(*nodes_[0]);
  for (int node = 1; node < 3; ++node) nodes_.push_back(group_.StartNode(node, "2:3", arguments));
  for (const auto& node : nodes_) {
    ASSERT_EQ(NextProbes(*node, 2).size(), 2u) << OutputOf(*node);
  }
  const absl::Time killed = absl::Now();
  nodes_[0]->Kill(SIGKILL);
  for (const size_t node : {1, 2}) {
    const std::vector<ProbeLine> probes = NextProbes(*nodes_[node], 2, absl::Seconds(60));
    ASSERT_EQ(probes.size(), 2u) << OutputOf(*nodes_[node]);
    EXPECT_EQ(probes[0].world, 4);
    EXPECT_EQ(probes[0].generation, 2);
  }
  PrintSince("killed the node that led: the others run the next generation", killed);
  std::ofstream(done_) << "now";
  for (const size_t node : {1, 2}) EXPECT_EQ(nodes_[node]->Wait(), 0) << OutputOf(*nodes_[node]);
}

// The leader dies at a kind of record that a job with one restart writes.
class FailoverAtRecordTest : public FailoverTest,
                             public testing::WithParamInterface<const char*> {};

TEST_P(FailoverAtRecordTest, TheJobEndsAsIfNothingHadBeen) {
  StartServers(GetParam());
  StartJob({"--max-restarts", "1", "/bin/sh", "-c",
            "echo \"probe generation=$CADRE_GENERATION\"; [ $RANK.$CADRE_GENERATION = 0.1 ] && "
            "exit 7; exit 0"});
  ASSERT_TRUE(group_.WaitDead(0, absl::Seconds(30))) << "there was no such record";
  std::string all;
  for (const auto& node : nodes_) {
    EXPECT_EQ(node->Wait(absl::Seconds(40)), 0) << OutputOf(*node);
    all += node->standard_output();
  }
  EXPECT_THAT(all, HasSubstr("generation=2"));
  EXPECT_THAT(all, Not(HasSubstr("generation=3")));
}

INSTANTIATE_TEST_SUITE_P(Records, FailoverAtRecordTest,
                         testing::Values("before generation_formed", "after generation_formed",
                                         "after worker_ended", "before job_ended"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           std::string name = info.param;
                           for (char& c : name) {
                             if (c == ' ') c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace cadre
