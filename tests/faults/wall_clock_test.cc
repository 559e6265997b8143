// The wall clock of every machine of a job is set, by hours, while it runs.
#include "tests/testing/wall_clock.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "tests/faults/mortal_server.h"

namespace cadre {
namespace {

constexpr char kSteadyWorker[] = "tests/faults/steady_worker";
constexpr char kPreloaded[] = "tests/testing/libwall_clock.so";
constexpr absl::Duration kTimeout = absl::Seconds(60);

class WallClockTest : public testing::Test {
 protected:
  WallClockTest() {
    Set(0);
    setenv(CADRE_WALL_CLOCK_FILE, clock_.c_str(), 1);
    setenv("LD_PRELOAD", std::filesystem::absolute(kPreloaded).c_str(), 1);
  }
  ~WallClockTest() override {
    unsetenv(CADRE_WALL_CLOCK_FILE);
    unsetenv("LD_PRELOAD");
  }

  // Of all that the test has started, and will start.
  void Set(int hours) {
    const int64_t seconds = int64_t{hours} * 3600;
    const int fd = open(clock_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    EXPECT_EQ(pwrite(fd, &seconds, sizeof(seconds), 0), ssize_t{sizeof(seconds)});
    close(fd);
  }
  // Two nodes of two workers each.
  void StartJob() {
    ASSERT_TRUE(server_.Start());
    for (const int node : {0, 1}) {
      nodes_.push_back(
          server_.StartNode(node, "2",
                            {"--max-restarts", "1", "--stop-grace", "1s", "--silence-timeout", "1m",
                             "--orphan-timeout", orphan_timeout_, "--log-dir", directory_ + "/logs",
                             kSteadyWorker, directory_}));
      ASSERT_NE(nodes_.back(), nullptr);
    }
    ExpectGeneration(1, 0);
  }
  void ExpectGeneration(int generation, int restarts) {
    for (const auto& node : nodes_) {
      const std::vector<ProbeLine> probes = NextProbes(*node, 2, kTimeout);
      ASSERT_EQ(probes.size(), 2u) << OutputOf(*node);
      for (const ProbeLine& probe : probes) {
        EXPECT_EQ(probe.generation, generation);
        EXPECT_EQ(probe.restarts, restarts);
      }
    }
    ExpectSteps();
  }
  void ExpectSteps() {
    for (const auto& node : nodes_) {
      ASSERT_EQ(node->WaitForLines("step ", 20, kTimeout).size(), 20u) << OutputOf(*node);
    }
  }
  void Touch(const std::string& name) { std::ofstream(directory_ + "/" + name) << "\n"; }
  void ExpectSuccess() {
    Touch("done");
    for (const auto& node : nodes_) EXPECT_EQ(node->Wait(kTimeout), 0) << OutputOf(*node);
  }

  MortalServer server_;
  const std::string directory_ = MakeTempDir("clock");
  const std::string clock_ = directory_ + "/clock";
  std::string orphan_timeout_ = "60s";
  std::vector<std::unique_ptr<Process>> nodes_;
};

// Fault (node): The wall clock is set by hours on the machines of a job -> Nothing is lost: leases,
// timeouts and budgets use the monotonic clock, and logs and verdicts have the new time
TEST_F(WallClockTest, SetWhileAJobRuns_NothingIsLostAndNobodyIsTakenForLost) {
  StartJob();
  for (const int hours : {5, -10, 30}) {
    Set(hours);
    ExpectSteps();
  }
  // The server comes back with another time than it went with.
  server_.Kill();
  Set(-30);
  ASSERT_TRUE(server_.Start());
  // Its log begins with the time.
  absl::Time started;
  std::string error;
  const std::string& log = server_.process().standard_error();
  ASSERT_TRUE(absl::ParseTime("%Y-%m-%d %H:%M:%S", log.substr(0, log.find('.')),
                              absl::LocalTimeZone(), &started, &error))
      << error << ": " << log;
  EXPECT_LT(started, absl::Now() - absl::Hours(20));
  ExpectSteps();
  ExpectSuccess();
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/logs/job/generation_2"));
}

TEST_F(WallClockTest, SetWhileAWorkerDies_TheNextGenerationBeginsAsEver) {
  StartJob();
  Set(-10);
  Touch("die.0");
  ASSERT_TRUE(nodes_[0]->WaitForLine("stopping generation 1", kTimeout).has_value())
      << OutputOf(*nodes_[0]);
  std::filesystem::remove(directory_ + "/die.0");
  Set(20);
  ExpectGeneration(2, 1);
  ExpectSuccess();
}

// Fault (server): The wall clock is set back while the server does not answer -> Agents notice its
// absence as soon as otherwise, although gRPC's timers use that clock
TEST_F(WallClockTest, SetBackWhileTheServerStandsStill_NobodyWaitsForItLonger) {
  orphan_timeout_ = "2s";
  StartJob();
  server_.process().Kill(SIGSTOP);
  Set(-10);
  for (const auto& node : nodes_) {
    const std::optional<int> status = node->Wait(kTimeout);
    ASSERT_TRUE(status.has_value()) << OutputOf(*node);
    EXPECT_EQ(*status, 69) << OutputOf(*node);
  }
}

}  // namespace
}  // namespace cadre
