// A worker that SIGKILL does not end, as if it waited for a file system that does not answer: it is
// held in the freezer of cgroup v1.
#include <signal.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "tests/faults/mortal_server.h"
#include "tests/testing/cgroups.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The grace of 1 s, and what the supervisor gives SIGKILL; and what a busy machine may add.
constexpr absl::Duration kOut = absl::Seconds(6);
constexpr absl::Duration kMore = absl::Seconds(3);
constexpr absl::Duration kTimeout = absl::Seconds(60);

class UnkillableTest : public testing::Test {
 protected:
  void SetUp() override {
    auto freezer = Freezer::Make();
    if (!freezer.ok()) GTEST_SKIP() << freezer.status();
    freezer_ = *std::move(freezer);
    ASSERT_TRUE(server_.Start());
  }
  // Nodes of two workers each, of which generation 1 runs.
  void StartJob(int nodes, const std::string& nnodes) {
    for (int node = 0; node < nodes; ++node) {
      nodes_.push_back(StartNode(node, nnodes));
      ASSERT_NE(nodes_.back(), nullptr);
    }
    for (const auto& node : nodes_) workers_.push_back(Workers(*node, 1));
  }
  std::unique_ptr<Process> StartNode(int node, const std::string& nnodes) {
    return server_.StartNode(node, nnodes,
                             {"--stop-grace", "1s", "--max-restarts", "3", "--scale-up",
                              "immediately", "--adopt-timeout", adopt_timeout_, kProbe});
  }
  static std::vector<ProbeLine> Workers(Process& node, int generation) {
    const std::vector<ProbeLine> probes = NextProbes(node, 2, kTimeout);
    EXPECT_EQ(probes.size(), 2u) << OutputOf(node);
    for (const ProbeLine& probe : probes) EXPECT_EQ(probe.generation, generation);
    return probes;
  }
  // Holds a worker of the last node in the kernel, and kills one of the first. Returns when.
  MonoTime FailWithOneFrozen() {
    EXPECT_OK(freezer_->Freeze(workers_.back().at(1).pid));
    const MonoTime failed = MonoNow();
    EXPECT_EQ(kill(workers_.front().at(0).pid, SIGKILL), 0);
    EXPECT_TRUE(nodes_.back()->WaitForLine(Remains(), kTimeout).has_value())
        << OutputOf(*nodes_.back());
    return failed;
  }
  std::string Remains() const {
    const ProbeLine& frozen = workers_.back().at(1);
    return absl::StrCat("rank ", frozen.rank, " (local rank ", frozen.local,
                        ") outlives SIGKILL: pid ", frozen.pid, " is in ");
  }
  std::string Status() const {
    const auto status = StartCadre({"status", "job", "--server=" + server_.endpoint(),
                                    "--token-file=" + server_.token_file()});
    EXPECT_EQ(status->Wait(kTimeout), 0) << OutputOf(*status);
    return status->standard_output();
  }
  void Thaw() {
    EXPECT_OK(freezer_->Thaw());
    EXPECT_TRUE(nodes_.back()->WaitForLine("can take part in the job again", kTimeout).has_value())
        << OutputOf(*nodes_.back());
    EXPECT_TRUE(WaitGone(workers_.back().at(1).pid, kTimeout));
  }

  std::string adopt_timeout_ = "0s";
  MortalServer server_;
  std::vector<std::unique_ptr<Process>> nodes_;
  std::vector<std::vector<ProbeLine>> workers_;
  // Thaws before the launchers are killed.
  std::unique_ptr<Freezer> freezer_;
};

// Fault (worker): SIGKILL does not end a worker of an elastic job, because a file system or driver
// does not answer -> 5 to 8 s later its node reports the process and where it is stuck, and is
// excluded until the process is gone; the others go on
TEST_F(UnkillableTest, Elastic_TheOthersGoOn_AndTheNodeIsBackWhenTheProcessIsGone) {
  StartJob(3, "2:3");
  const MonoTime failed = FailWithOneFrozen();
  MonoTime first = MonoTime::Never();
  for (const int node : {0, 1}) {
    for (const ProbeLine& worker : Workers(*nodes_.at(node), 2)) {
      EXPECT_EQ(worker.world, 4);
      first = std::min(first, MonoTime::FromMicros(worker.at_ns / 1000));
    }
  }
  printf("a worker outlives SIGKILL: the others go on after %s\n",
         absl::FormatDuration(first - failed).c_str());
  EXPECT_GE(first - failed, kOut);
  EXPECT_LT(first - failed, kOut + kMore);
  EXPECT_THAT(Status(), AllOf(HasSubstr("running"), HasSubstr(" is out: rank "),
                              HasSubstr(" outlives SIGKILL: pid ")));
  Thaw();
  for (const auto& node : nodes_) Workers(*node, 3);
  EXPECT_THAT(Status(), testing::Not(HasSubstr("outlives SIGKILL")));
}

// Fault (worker): SIGKILL does not end a worker of a job of fixed size -> The job waits until the
// process is gone or another node joins
TEST_F(UnkillableTest, FixedSize_TheJobWaits_AndFormsWhenTheProcessIsGone) {
  StartJob(2, "2");
  FailWithOneFrozen();
  EXPECT_TRUE(nodes_.front()->WaitForLine("outlives SIGKILL", kTimeout).has_value())
      << OutputOf(*nodes_.front());
  EXPECT_THAT(Status(), AllOf(HasSubstr("1 of 2 joined"), HasSubstr(" outlives SIGKILL: pid ")));
  Thaw();
  for (const auto& node : nodes_) Workers(*node, 2);
}

// Fault (worker): A worker survives SIGKILL, and the node's supervisor dies -> The launcher keeps
// watching what is left, and the node is excluded until it is gone
TEST_F(UnkillableTest, TheSupervisorIsKilledToo_AndTheJobWaitsAsBefore) {
  StartJob(2, "2");
  FailWithOneFrozen();
  // "pid (name) state parent ..."
  const std::vector<std::string> stat = absl::StrSplit(
      ReadFileOrEmpty(absl::StrCat("/proc/", workers_.back().at(1).pid, "/stat")), ' ');
  int supervisor = 0;
  ASSERT_TRUE(stat.size() > 3 && absl::SimpleAtoi(stat[3], &supervisor));
  ASSERT_EQ(kill(supervisor, SIGKILL), 0);
  EXPECT_TRUE(nodes_.back()->WaitForLine("another one is started", kTimeout).has_value());
  EXPECT_THAT(Status(), AllOf(HasSubstr("1 of 2 joined"), HasSubstr(" outlives SIGKILL: pid ")));
  Thaw();
  for (const auto& node : nodes_) Workers(*node, 2);
}

// Fault (worker): A worker survives SIGKILL, and the launcher dies, with `--adopt-timeout` -> The
// next launcher takes over, and the node is excluded until no process is left
TEST_F(UnkillableTest, TheLauncherIsKilledToo_AndTheNextOneTakesItOver) {
  adopt_timeout_ = "60s";
  StartJob(2, "2");
  FailWithOneFrozen();
  nodes_.back()->Kill(SIGKILL);
  nodes_.back()->Wait();
  nodes_.back() = StartNode(1, "2");
  EXPECT_TRUE(nodes_.back()->WaitForLine("took over 2 workers", kTimeout).has_value());
  EXPECT_TRUE(nodes_.back()->WaitForLine(Remains(), kTimeout).has_value());
  EXPECT_THAT(Status(), AllOf(HasSubstr("1 of 2 joined"), HasSubstr(" outlives SIGKILL: pid ")));
  Thaw();
  for (const auto& node : nodes_) Workers(*node, 2);
}

TEST_F(UnkillableTest, TheLauncherIsKilledBeforeItSaysSo_AndTheNextOneDoes) {
  adopt_timeout_ = "60s";
  StartJob(2, "2");
  ASSERT_OK(freezer_->Freeze(workers_.back().at(1).pid));
  ASSERT_EQ(kill(workers_.front().at(0).pid, SIGKILL), 0);
  ASSERT_TRUE(WaitGone(workers_.back().at(0).pid, kTimeout));
  nodes_.back()->Kill(SIGKILL);
  nodes_.back()->Wait();
  nodes_.back() = StartNode(1, "2");
  EXPECT_TRUE(nodes_.back()->WaitForLine("took over 2 workers", kTimeout).has_value());
  EXPECT_TRUE(nodes_.back()->WaitForLine(Remains(), kTimeout).has_value());
  Thaw();
  for (const auto& node : nodes_) Workers(*node, 2);
}

}  // namespace
}  // namespace cadre
