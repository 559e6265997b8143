// kill -9 of the server while a job of two nodes runs: at any moment, and at every kind of record.
// Nothing that was acknowledged is lost, and no worker notices.
#include <errno.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "tests/faults/counted_additions.h"
#include "tests/faults/mortal_server.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// By hand: CADRE_FAULT_CYCLES=1000.
int Cycles() {
  int cycles = 20;
  const char* wanted = getenv("CADRE_FAULT_CYCLES");
  if (wanted != nullptr && !absl::SimpleAtoi(wanted, &cycles)) ADD_FAILURE() << wanted;
  return cycles;
}

// "p50 50ms, p99 80ms, longest 90ms"; sorts them.
std::string Spread(std::vector<absl::Duration>& times) {
  std::sort(times.begin(), times.end());
  const auto at = [&times](size_t percent) {
    return absl::FormatDuration(
        absl::Floor(times[(times.size() - 1) * percent / 100], absl::Milliseconds(1)));
  };
  return absl::StrCat("p50 ", at(50), ", p99 ", at(99), ", longest ", at(100));
}

// Workers that say who they are and end well once the file `done` is there. With `fail_once` rank
// 0 of the first generation fails.
std::vector<std::string> Worker(const std::string& done, bool fail_once) {
  return {"--max-restarts", "1", "/bin/sh", "-c",
          absl::StrCat("echo \"probe rank=$RANK generation=$CADRE_GENERATION "
                       "restarts=$TORCHELASTIC_RESTART_COUNT pid=$$\"; ",
                       fail_once ? "[ $RANK.$CADRE_GENERATION = 0.1 ] && exit 7; " : "",
                       "until [ -e ", done, " ]; do sleep 0.02; done")};
}

class ServerKilledTest : public testing::Test {
 protected:
  void StartJob(bool fail_once) { StartNodes(0, 2, fail_once); }
  void StartNodes(int first, int end, bool fail_once) {
    for (int node = first; node < end; ++node) {
      nodes_.push_back(server_.StartNode(node, "2", Worker(done_, fail_once)));
      ASSERT_NE(nodes_.back(), nullptr);
    }
  }
  void AwaitWorkers() {
    for (const auto& node : nodes_) {
      for (const ProbeLine& probe : NextProbes(*node, 2)) pids_.push_back(probe.pid);
    }
    ASSERT_EQ(pids_.size(), 4u) << OutputOf(*nodes_[0]) << OutputOf(*nodes_[1]);
  }
  void ExpectWorkersAlive() {
    for (const pid_t pid : pids_) EXPECT_TRUE(IsAlive(pid)) << pid;
  }
  void AwaitAgents() {
    for (const auto& node : nodes_) {
      EXPECT_TRUE(node->WaitForLine("reached the rendezvous server").has_value())
          << OutputOf(*node);
    }
  }
  void FinishJob() {
    std::ofstream(done_) << "now";
    for (const auto& node : nodes_) EXPECT_EQ(node->Wait(), 0) << OutputOf(*node);
  }

  MortalServer server_;
  const std::string done_ = MakeTempDir("done") + "/done";
  std::vector<std::unique_ptr<Process>> nodes_;
  std::vector<pid_t> pids_;
};

TEST_F(ServerKilledTest, AJobKeepsItsWorkersAndEndsNormally) {
  ASSERT_TRUE(server_.Start());
  StartJob(false);
  AwaitWorkers();
  server_.Kill();
  ASSERT_TRUE(server_.Start());
  AwaitAgents();
  EXPECT_LT(server_.slowest_start(), kBackWithin);
  ExpectWorkersAlive();
  FinishJob();
  for (const auto& node : nodes_) {
    EXPECT_THAT(node->standard_output(), ::testing::Not(HasSubstr("generation=2")));
  }
}

// Fault (server): The job ends while the server is away -> Its nodes are told when they reconnect,
// and the job does not begin again
TEST_F(ServerKilledTest, AJobEndsWhileTheServerIsAway) {
  ASSERT_TRUE(server_.Start());
  StartJob(false);
  AwaitWorkers();
  server_.Kill();
  std::ofstream(done_) << "now";
  for (const pid_t pid : pids_) EXPECT_TRUE(WaitGone(pid, absl::Seconds(20)));
  ASSERT_TRUE(server_.Start());
  for (const auto& node : nodes_) EXPECT_EQ(node->Wait(), 0) << OutputOf(*node);
}

// Fault (server): The server is killed at any moment -> It replays its state and serves again
// within 2 s; the generation stays, and no worker restarts
TEST_F(ServerKilledTest, AtRandomMomentsNothingAcknowledgedIsLost) {
  ASSERT_TRUE(server_.Start());
  StartJob(false);
  AwaitWorkers();
  CountedAdditions additions(server_);
  const int cycles = Cycles();
  // Of the server, and from the kill until both agents were back.
  std::vector<absl::Duration> starts, returns;
  for (int cycle = 0; cycle < cycles && !HasFailure(); ++cycle) {
    additions.AwaitAnyMoment();
    const absl::Time killed = absl::Now();
    server_.Kill();
    const absl::Time begin = absl::Now();
    if (!server_.Start()) break;
    starts.push_back(absl::Now() - begin);
    AwaitAgents();
    returns.push_back(absl::Now() - killed);
    ExpectWorkersAlive();
  }
  const int64_t acknowledged = additions.Stop();
  EXPECT_LT(server_.slowest_start(), kBackWithin);
  ASSERT_EQ(returns.size(), static_cast<size_t>(cycles));
  printf("%d cycles, %lld additions\nserver starts: %s\nboth agents back: %s\n", cycles,
         static_cast<long long>(acknowledged), Spread(starts).c_str(), Spread(returns).c_str());
  EXPECT_LT(returns[returns.size() / 2], kBackWithin);
  FinishJob();
}

// Each kind of record that a job with one restart writes, before and after it is saved.
class ServerKilledAtRecordTest : public ServerKilledTest,
                                 public testing::WithParamInterface<const char*> {};

TEST_P(ServerKilledAtRecordTest, TheJobEndsAsIfNothingHadBeen) {
  ASSERT_TRUE(server_.Start(GetParam()));
  std::ofstream(done_) << "now";
  // What the first node alone brings about. The second comes later then: a launcher that finds
  // nobody at the endpoint serves it.
  const std::string moment = GetParam();
  const bool one_is_enough =
      absl::StrContains(moment, "job_created") || absl::StrContains(moment, "node_admitted");
  StartNodes(0, one_is_enough ? 1 : 2, true);
  ASSERT_TRUE(server_.WaitDead(absl::Seconds(30))) << "there was no such record";
  ASSERT_TRUE(server_.Start());
  if (one_is_enough) StartNodes(1, 2, true);
  EXPECT_LT(server_.slowest_start(), kBackWithin);
  std::string all;
  for (const auto& node : nodes_) {
    EXPECT_EQ(node->Wait(absl::Seconds(40)), 0) << OutputOf(*node);
    all += node->standard_output();
  }
  // One restart, and none because of the server.
  EXPECT_THAT(all, HasSubstr("generation=2"));
  EXPECT_THAT(all, ::testing::Not(HasSubstr("generation=3")));
}

INSTANTIATE_TEST_SUITE_P(
    Records, ServerKilledAtRecordTest,
    testing::Values("before job_created", "after job_created", "before node_admitted",
                    "after node_admitted", "before generation_formed", "after generation_formed",
                    "before worker_ran", "after worker_ran", "before worker_ended",
                    "after worker_ended", "before stop_ordered", "after stop_ordered",
                    "before node_cleared", "after node_cleared", "before gathering_began",
                    "after gathering_began", "before job_ended", "after job_ended"),
    [](const testing::TestParamInfo<const char*>& info) {
      std::string name = info.param;
      for (char& c : name) {
        if (c == ' ') c = '_';
      }
      return name;
    });

// Fault (store): The answer to a store operation is lost because the server dies -> The repeated
// request gets the first answer, and the operation is not executed twice
TEST_F(ServerKilledTest, AnAddIsExecutedOnceWhereverTheServerDies) {
  for (const char* moment : {"before key_written", "after key_written"}) {
    SCOPED_TRACE(moment);
    if (nodes_.empty()) {
      ASSERT_TRUE(server_.Start(moment));
      StartJob(false);
      AwaitWorkers();
    } else {
      server_.Kill();
      ASSERT_TRUE(server_.Start(moment));
    }
    StoreClient client(server_, "job", 1);
    absl::StatusOr<int64_t> sum;
    std::thread adder([&] { sum = client.Add(moment, moment[0]); });
    EXPECT_TRUE(server_.WaitDead(absl::Seconds(20)));
    EXPECT_TRUE(server_.Start());
    adder.join();
    ASSERT_THAT(sum, IsOk());
    EXPECT_EQ(*sum, 1);
  }
  ExpectWorkersAlive();
  FinishJob();
}

// Nothing of the job is known to who comes in the server's place: it begins anew, and what ran
// before ends first.
//
// Fault (state): The state directory is removed and the server restarted -> It has a new
// `server_id`: agents stop their workers and join from scratch
TEST_F(ServerKilledTest, ItsStateIsLost_TheJobBeginsAnewAndOldWorkersAreGone) {
  ASSERT_TRUE(server_.Start());
  StartJob(false);
  AwaitWorkers();
  const std::vector<pid_t> before = pids_;
  server_.Kill();
  std::filesystem::remove_all(server_.state_dir());
  ASSERT_TRUE(server_.Start());
  pids_.clear();
  AwaitWorkers();
  for (const pid_t pid : before) EXPECT_FALSE(IsAlive(pid)) << pid;
  FinishJob();
  for (const auto& node : nodes_) {
    EXPECT_THAT(node->standard_output(), ::testing::Not(HasSubstr("generation=2")));
  }
}

// A file system of one MiB, which needs root.
//
// Fault (state): The server's disk is full -> Changes are refused with RESOURCE_EXHAUSTED, leases
// and workers are kept, and the server goes on when there is room
TEST_F(ServerKilledTest, AFullDiskRefusesChangesKeepsWorkersAndRecovers) {
  std::filesystem::create_directories(server_.state_dir());
  if (mount("tmpfs", server_.state_dir().c_str(), "tmpfs", 0, "size=1m,mode=700") != 0) {
    GTEST_SKIP() << "needs the right to mount";
  }
  ASSERT_TRUE(server_.Start());
  StartJob(false);
  AwaitWorkers();
  StoreClient client(server_, "job", 1);
  ASSERT_THAT(client.Add("count", 1), IsOk());
  const std::string ballast = server_.state_dir() + "/ballast";
  std::ofstream(ballast) << std::string(2 << 20, 'x');
  absl::StatusOr<int64_t> sum = 1;
  int64_t next = 2;
  // Until the space that the file already has is used up; the last one waits for its answer.
  std::thread adder([&] {
    while (sum.ok()) sum = client.Add("count", next++);
  });
  EXPECT_TRUE(server_.process().WaitForLine("no space is left").has_value())
      << OutputOf(server_.process());
  const absl::StatusOr<int64_t> refused = StoreClient(server_, "job", 2).Add("other", 1);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("no space is left"));
  ExpectWorkersAlive();
  std::filesystem::remove(ballast);
  EXPECT_TRUE(server_.process().WaitForLine("state can be saved again").has_value())
      << OutputOf(server_.process());
  adder.join();
  EXPECT_THAT(StoreClient(server_, "job", 3).Add("other", 1), IsOk());
  ExpectWorkersAlive();
  FinishJob();
  server_.Kill();
  EXPECT_EQ(umount2(server_.state_dir().c_str(), MNT_DETACH), 0) << errno;
}

}  // namespace
}  // namespace cadre
