// Step, speed and loss on their way from workers to people.
#include <csignal>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "nlohmann/json.hpp"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// Reports until it is stopped.
constexpr char kReports[] =
    "i=0; while :; do i=$((i+1)); "
    "echo step=$i samples_per_second=100 loss=0.5 >&$CADRE_PROGRESS_FD; sleep 0.1; done";

TEST(ProgressTest, Terminal_ShowsTheWholeJob) {
  auto run =
      StartCadre({"run", "--standalone", "--nproc-per-node", "2", "--", "/bin/sh", "-c", kReports},
                 {{"TERM", "xterm"}}, /*terminal=*/true);
  EXPECT_TRUE(run->WaitForLine("| 200 samples/s | loss 0.5000").has_value()) << OutputOf(*run);
  run->Kill(SIGINT);
  EXPECT_EQ(run->Wait(), 130) << OutputOf(*run);
}

// Of a job without any timeout, in a pipe and from the server.
//
// Fault (display): No step completes although no timeout is set -> Nothing is stopped; after three
// times the usual step time, at least 5 s, the display says for how long and where the ranks are,
// until the next step
TEST(ProgressTest, WhenNoStepComes_ThatIsSaid_AndNothingIsStopped) {
  constexpr char kStops[] =
      "i=0; while [ $i -lt 20 ]; do i=$((i+1)); "
      "echo step=$i samples_per_second=100 >&$CADRE_PROGRESS_FD; sleep 0.1; done; sleep 1000";
  const int port = FreePort();
  const auto run = StartNode(port, "1", 0, {"--job-name", "still", "--", "/bin/sh", "-c", kStops});
  const auto said = run->WaitForLine("no step for ", absl::Seconds(60));
  ASSERT_TRUE(said.has_value()) << OutputOf(*run);
  EXPECT_THAT(*said, HasSubstr(": rank 0 sleeps"));
  auto why = StartCadre({"why", "still", "--server", absl::StrCat("127.0.0.1:", port)});
  EXPECT_EQ(why->Wait(), 0) << OutputOf(*why);
  EXPECT_THAT(why->standard_output(), testing::AllOf(HasSubstr("makes no progress: rank 0 sleeps"),
                                                     HasSubstr("step 20 | no step for "),
                                                     testing::Not(HasSubstr("samples/s"))));
  run->Kill(SIGINT);
  EXPECT_EQ(run->Wait(), 130) << OutputOf(*run);
}

TEST(ProgressTest, ServerTellsHowFarAJobIs_AndItsFilesAfterwards) {
  const int port = FreePort();
  const std::string at = absl::StrCat("127.0.0.1:", port), logs = MakeTempDir("logs");
  auto server =
      StartCadre({"server", "--port", absl::StrCat(port), "--state-dir", MakeTempDir("state")});
  ASSERT_TRUE(server->WaitForLine(absl::StrCat(port)).has_value()) << OutputOf(*server);
  std::vector<std::unique_ptr<Process>> nodes;
  for (int i = 0; i < 2; ++i) {
    nodes.push_back(StartNode(
        port, "2", i, {"--job-name", "far", "--log-dir", logs, "--", "/bin/sh", "-c", kReports}));
  }
  const absl::Time end = absl::Now() + absl::Seconds(60);
  std::string said;
  while (!absl::StrContains(said, "200 samples/s") && absl::Now() < end) {
    // Until a node has come there is no such job.
    auto status = StartCadre({"status", "far", "--server", at});
    ASSERT_TRUE(status->Wait().has_value());
    said = status->standard_output();
  }
  EXPECT_THAT(said, HasSubstr("| 200 samples/s | loss 0.5000"));
  auto why = StartCadre({"why", "far", "--server", at});
  EXPECT_EQ(why->Wait(), 0) << OutputOf(*why);
  EXPECT_THAT(why->standard_output(), HasSubstr("2 of 2 workers run, step "));
  nodes[0]->Kill(SIGINT);
  for (auto& node : nodes) EXPECT_EQ(node->Wait(), 130) << OutputOf(*node);
  const auto timeline =
      nlohmann::json::parse(ReadFileOrEmpty(logs + "/far/timeline.json"), nullptr, false);
  ASSERT_TRUE(timeline.is_object());
  ASSERT_GE(timeline["progress"].size(), 1u) << timeline;
  EXPECT_EQ(timeline["progress"].back()["samples_per_second"], 200);
}

}  // namespace
}  // namespace cadre
