// cadre status --watch, in a pipe and on a terminal.
#include <pwd.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "nlohmann/json.hpp"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// Fails once when told to, then runs until it is told to end.
std::string Worker(const std::string& directory) {
  return absl::StrCat(
      "echo step=5 samples_per_second=100 loss=0.5 >&$CADRE_PROGRESS_FD; wait_for() { until [ -e ",
      directory, "/$1 ]; do sleep 0.05; done; }; ",
      "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then wait_for fail; exit 7; fi; wait_for end; ",
      "exit $(cat ", directory, "/end)");
}

class StatusWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = StartCadre({"server", "--port", absl::StrCat(port_), "--state-dir", "none"});
    ASSERT_TRUE(server_->WaitForLine("serving at").has_value()) << OutputOf(*server_);
    node_ = StartNode(port_, "1", 0,
                      {"--job-name", "watched", "--max-restarts", "1", "--log-dir",
                       MakeTempDir("logs"), "--", "/bin/sh", "-c", Worker(directory_)});
    ASSERT_TRUE(node_->WaitForLine("generation 1 running").has_value()) << OutputOf(*node_);
  }
  std::unique_ptr<Process> Watch(std::vector<std::string> more, bool terminal = false) {
    std::vector<std::string> arguments = {"status", "--watch", "--server",
                                          absl::StrCat("127.0.0.1:", port_)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return StartCadre(arguments, {{"TERM", "xterm"}}, terminal);
  }
  void Tell(const std::string& what, const std::string& text = "") {
    std::ofstream(directory_ + "/." + what) << text;
    ASSERT_EQ(rename((directory_ + "/." + what).c_str(), (directory_ + "/" + what).c_str()), 0);
  }

  const int port_ = FreePort();
  const std::string directory_ = MakeTempDir("watch");
  std::unique_ptr<Process> server_;
  std::unique_ptr<Process> node_;
};

TEST_F(StatusWatchTest, PipeGetsALineForEachChange_AndTheJobsExitStatus) {
  auto watch = Watch({"watched"});
  EXPECT_TRUE(watch->WaitForLine("generation 1 running").has_value()) << OutputOf(*watch);
  EXPECT_TRUE(watch->WaitForLine("step 5 | 100 samples/s | loss 0.5000").has_value())
      << OutputOf(*watch);
  Tell("fail");
  EXPECT_TRUE(watch->WaitForLine("exited with status 7 in generation 1").has_value())
      << OutputOf(*watch);
  EXPECT_TRUE(watch->WaitForLine("generation 2 running").has_value()) << OutputOf(*watch);
  Tell("end", "3");
  EXPECT_TRUE(watch->WaitForLine("job watched failed: ").has_value()) << OutputOf(*watch);
  EXPECT_EQ(watch->Wait(), 3) << OutputOf(*watch);
  EXPECT_EQ(node_->Wait(), 3) << OutputOf(*node_);
}

TEST_F(StatusWatchTest, TerminalIsRedrawn) {
  auto watch = Watch({"watched"}, /*terminal=*/true);
  EXPECT_TRUE(watch->WaitForLine("NODE RANK").has_value()) << OutputOf(*watch);
  Tell("fail");
  EXPECT_TRUE(watch->WaitForLine("FIRST PROGRESS").has_value()) << OutputOf(*watch);
  Tell("end", "0");
  EXPECT_TRUE(watch->WaitForLine("job watched succeeded").has_value()) << OutputOf(*watch);
  EXPECT_EQ(watch->Wait(), 0) << OutputOf(*watch);
  EXPECT_THAT(watch->standard_output(), HasSubstr("\x1b[H"));
}

TEST_F(StatusWatchTest, JsonGetsALineForEachChange) {
  auto watch = Watch({"watched", "--output", "json"});
  const auto line = watch->WaitForLine("\"name\":\"watched\"");
  ASSERT_TRUE(line.has_value()) << OutputOf(*watch);
  EXPECT_EQ(nlohmann::json::parse(*line)["generation"], "1");
  auto all = Watch({});
  EXPECT_TRUE(all->WaitForLine("watched: generation 1 running").has_value()) << OutputOf(*all);
  all->Kill(SIGINT);
  Tell("fail");
  Tell("end", "0");
  EXPECT_TRUE(watch->WaitForLine("\"phase\":\"SUCCEEDED\"").has_value()) << OutputOf(*watch);
  EXPECT_EQ(watch->Wait(), 0) << OutputOf(*watch);
}

TEST_F(StatusWatchTest, ACluster) {
  const std::string server = absl::StrCat("127.0.0.1:", port_);
  auto lines = Watch({}), screen = Watch({}, /*terminal=*/true);
  EXPECT_TRUE(screen->WaitForLine("watched").has_value()) << OutputOf(*screen);
  auto agent = StartCadre({"agent", "--server", server, "--node-name", "n0", "--cpus", "1",
                           "--gpus", "0", "--user", getpwuid(geteuid())->pw_name});
  EXPECT_TRUE(lines->WaitForLine("node n0: up").has_value())
      << OutputOf(*lines) << OutputOf(*agent);
  auto drain = StartCadre({"drain", "n0", "--reason", "fan", "--server", server});
  EXPECT_EQ(drain->Wait(), 0) << OutputOf(*drain);
  EXPECT_TRUE(lines->WaitForLine("node n0: up, drained: fan").has_value()) << OutputOf(*lines);
  std::ofstream(directory_ + "/job.yaml") << "name: waits\ncommand: [\"true\"]\n";
  auto submit = StartCadre({"submit", directory_ + "/job.yaml", "--server", server});
  EXPECT_EQ(submit->Wait(), 0) << OutputOf(*submit);
  EXPECT_TRUE(lines->WaitForLine("waits: in the queue, waiting for 1 node").has_value())
      << OutputOf(*lines);
  EXPECT_TRUE(screen->WaitForLine("cluster: 1 node, 0 of 1 CPU in use").has_value())
      << OutputOf(*screen);
  EXPECT_TRUE(screen->WaitForLine("drained: n0 (fan)").has_value()) << OutputOf(*screen);
  EXPECT_TRUE(screen->WaitForLine("queue: 1 job; waits of ").has_value()) << OutputOf(*screen);
  for (const auto& watch : {lines.get(), screen.get()}) watch->Kill(SIGINT);
  agent->Kill(SIGTERM);
  EXPECT_EQ(agent->Wait(), 0) << OutputOf(*agent);
  Tell("fail");
  Tell("end", "0");
  EXPECT_EQ(node_->Wait(), 0) << OutputOf(*node_);
}

TEST_F(StatusWatchTest, AJobThatIsNotThereIsNoWatch) {
  auto watch = Watch({"other"});
  EXPECT_EQ(watch->Wait(), 1) << OutputOf(*watch);
  EXPECT_THAT(watch->standard_error(), HasSubstr("other"));
}

}  // namespace
}  // namespace cadre
