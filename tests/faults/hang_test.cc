// Workers that hang: named across the nodes of a job, with evidence, soon after the timeout.
#include <time.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "nlohmann/json.hpp"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr char kWorker[] = "tests/faults/hanging_worker";
// A machine that does other things may let a healthy worker stand still for a while.
constexpr absl::Duration kProgressTimeout = absl::Seconds(4);
constexpr absl::Duration kTimeout = absl::Seconds(60);

absl::Duration Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::DurationFromTimespec(now);
}

// Two nodes of two workers; rank 2, on node1, hangs.
class HangTest : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& worker, const std::vector<std::string>& flags = {}) {
    const int port = FreePort();
    for (int i = 0; i < 2; ++i) {
      std::vector<std::string> arguments = {
          "--nproc-per-node",   "2",
          "--log-dir",          logs_,
          "--job-name",         "hangs",
          "--progress-timeout", absl::FormatDuration(kProgressTimeout)};
      arguments.insert(arguments.end(), flags.begin(), flags.end());
      arguments.insert(arguments.end(), {"--", kWorker, "--rank", "2"});
      arguments.insert(arguments.end(), worker.begin(), worker.end());
      nodes_.push_back(StartNode(port, "2", i, arguments));
    }
  }

  // Waits until the culprit is named on its node, and says how long after it hung that was.
  void WaitUntilNamed(const std::string& what) {
    Process& node = *nodes_[1];
    const auto hung = node.WaitForLine("hangs now at_ns=", kTimeout);
    ASSERT_TRUE(hung.has_value()) << OutputOf(node);
    int64_t at_ns = 0;
    ASSERT_TRUE(absl::SimpleAtoi(hung->substr(hung->find("at_ns=") + 6), &at_ns));
    const auto named = node.WaitForLine("stopping generation 1: ", kTimeout);
    const absl::Duration took = Now() - absl::Nanoseconds(at_ns);
    ASSERT_TRUE(named.has_value()) << OutputOf(node);
    std::printf("%s: named %.3f s after it hung, with a progress timeout of %.0f s\n", what.c_str(),
                absl::ToDoubleSeconds(took), absl::ToDoubleSeconds(kProgressTimeout));
    RecordProperty("named_after_ms", static_cast<int>(absl::ToInt64Milliseconds(took)));
    EXPECT_THAT(*named, HasSubstr("rank 2 (local rank 0) on node1 made no progress for"));
    // It showed progress shortly before.
    EXPECT_GE(took, kProgressTimeout / 2);
    EXPECT_LE(took, kProgressTimeout + kTimeout / 2);
    named_ = *named;
  }

  nlohmann::json ReadJson(const std::string& name) {
    return nlohmann::json::parse(ReadFileOrEmpty(absl::StrCat(logs_, "/hangs/", name)), nullptr,
                                 false);
  }

  // Both launchers end with 124 and the verdict has the evidence of all four ranks.
  void CheckVerdict() {
    for (auto& node : nodes_) {
      EXPECT_EQ(node->Wait(kTimeout), 124) << OutputOf(*node);
      EXPECT_THAT(node->standard_error(), HasSubstr("rank 2 (local rank 0) on node1"));
    }
    const nlohmann::json verdict = ReadJson("verdict.json");
    ASSERT_TRUE(verdict.is_object());
    const nlohmann::json& root = verdict["root_cause"];
    EXPECT_EQ(root["cause"], "HANG");
    EXPECT_EQ(root["rank"], 2);
    EXPECT_EQ(root["node"], "node1");
    ASSERT_EQ(root["evidence"].size(), 4u) << root;
    EXPECT_EQ(root["evidence"][0]["rank"], 2);
    EXPECT_THAT(root["exit"]["last_lines"].get<std::string>(), HasSubstr("hangs now"));
    const std::string file = root["evidence"][0]["file"].get<std::string>();
    evidence_ = ReadFileOrEmpty(file);
    EXPECT_THAT(evidence_, AllOf(HasSubstr("rank 2 in generation 1"), HasSubstr("VmRSS"),
                                 HasSubstr("native stacks")))
        << file;
    culprit_ = root["evidence"][0];
    auto why = StartCadre({"why", "hangs", "--log-dir", logs_});
    EXPECT_EQ(why->Wait(), 0) << OutputOf(*why);
    EXPECT_THAT(why->standard_output(),
                AllOf(HasSubstr("rank 2 (local rank 0) on node1 made no progress"),
                      HasSubstr("where ranks were"), HasSubstr(file)));
  }

  const std::string logs_ = MakeTempDir("logs");
  std::vector<std::unique_ptr<Process>> nodes_;
  std::string named_;
  std::string evidence_;
  nlohmann::json culprit_;
};

// Fault (worker): A worker is stopped by SIGSTOP -> All nodes report where their workers are, the
// stopped one is named with evidence, and the job restarts within its budget or exits with 124
TEST_F(HangTest, StoppedWorker_IsNamed) {
  Start({"--how", "stop"});
  WaitUntilNamed("stopped");
  EXPECT_THAT(named_, HasSubstr("it is stopped (state T)"));
  CheckVerdict();
  EXPECT_EQ(culprit_["state"], "T");
  EXPECT_EQ(culprit_["phase"], "FORWARD");
}

// Fault (worker): A worker is in an endless loop while the others wait for it -> It is named with
// evidence, its generation is stopped, and the job restarts within its budget
TEST_F(HangTest, EndlessLoop_IsNamedAndTheJobGoesOn) {
  Start({"--how", "loop"}, {"--max-restarts", "1"});
  WaitUntilNamed("endless loop");
  EXPECT_THAT(named_,
              AllOf(HasSubstr("has not reached bucket 0 of step 20, for which 3 ranks wait"),
                    HasSubstr("in the forward pass of step 20")));
  for (auto& node : nodes_) EXPECT_EQ(node->Wait(kTimeout), 0) << OutputOf(*node);
  const nlohmann::json verdict = ReadJson("verdict.json");
  ASSERT_EQ(verdict["earlier"].size(), 1u) << verdict;
  EXPECT_EQ(verdict["earlier"][0]["evidence"][0]["state"], "R");
  const nlohmann::json timeline = ReadJson("timeline.json");
  ASSERT_EQ(timeline["recoveries"].size(), 1u) << timeline;
  EXPECT_GT(std::stoll(timeline["recoveries"][0]["total_us"].get<std::string>()), 0);
  EXPECT_GT(std::stoll(timeline["generations"][1]["first_progress_us"].get<std::string>()), 0);
  ASSERT_GE(timeline["progress"].size(), 2u);
  EXPECT_EQ(timeline["progress"].back()["generation"], "2");
  EXPECT_GT(timeline["progress"].back()["samples_per_second"], 0);
  // The same for people, from the files.
  auto text = StartCadre({"timeline", "hangs", "--log-dir", logs_});
  EXPECT_EQ(text->Wait(), 0) << OutputOf(*text);
  EXPECT_THAT(text->standard_output(), AllOf(HasSubstr("1 to 2"), HasSubstr("SAMPLES/S")));
  auto picture = StartCadre({"timeline", "hangs", "--log-dir", logs_, "--svg", logs_ + "/t.svg"});
  EXPECT_EQ(picture->Wait(), 0) << OutputOf(*picture);
  EXPECT_THAT(ReadFileOrEmpty(logs_ + "/t.svg"), HasSubstr("generation 2"));
}

// Fault (collective): Ranks deadlock in different collectives -> The rank that the others wait for
// is named with evidence, and its generation is stopped
TEST_F(HangTest, DeadlockInACollective_IsNamed) {
  Start({"--how", "deadlock"});
  WaitUntilNamed("deadlock");
  EXPECT_THAT(named_,
              AllOf(HasSubstr("has not reached bucket 0 of step 20, for which 3 ranks wait"),
                    HasSubstr("it sleeps")));
  CheckVerdict();
  EXPECT_LT(culprit_["cpu"], 0.5);
}

// Fault (worker): A worker of a program without Cadre's library is in an endless loop -> It is told
// apart from those that wait by the processor time that it uses, and named
TEST_F(HangTest, WithoutTheRuntimesPage_TheProcessorTellsALoopFromItsVictims) {
  Start({"--how", "loop", "--plain"});
  WaitUntilNamed("endless loop without a page");
  EXPECT_THAT(named_, HasSubstr("it uses "));
  CheckVerdict();
}

// Fault (worker): A program without progress reports stops writing output -> This is a hang after
// `timeouts.silence`
TEST(SilenceTest, AProgramThatWritesNothing_HangsByItsOutput) {
  const std::string logs = MakeTempDir("logs");
  auto run = StartStandalone({"--silence-timeout", "1s", "--job-name", "still", "--log-dir", logs,
                              "--", "/bin/sh", "-c", "echo begun; exec sleep 600"});
  EXPECT_EQ(run->Wait(kTimeout), 124) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), AllOf(HasSubstr("rank 0"), HasSubstr("no output for")));
  EXPECT_THAT(ReadFileOrEmpty(logs + "/still/generation_1/rank_0/evidence.txt"),
              AllOf(HasSubstr("Name:\tsleep"), HasSubstr("begun")));
}

TEST(ProgressFileTest, AnyProgramShowsProgressByTouchingAFile) {
  auto run =
      StartStandalone({"--progress-timeout", "4s", "--job-name", "touches", "--", "/bin/sh", "-c",
                       "for i in 1 2 3 4 5 6; do touch $CADRE_PROGRESS_FILE; sleep 0.5; "
                       "done; echo stands still; exec sleep 600"});
  const auto still = run->WaitForLine("stands still", kTimeout);
  EXPECT_TRUE(still.has_value()) << OutputOf(*run);
  EXPECT_EQ(run->Wait(kTimeout), 124) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("made no progress for"));
}

}  // namespace
}  // namespace cadre
