// A launcher of a Python program that asked for adoption is killed and started again: the one that
// follows has the template of the first, and what it starts again is warm.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/faults/mortal_server.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr char kPython[] = "/usr/bin/python3";
constexpr char kScript[] = "tests/faults/warm_steps.py";
constexpr absl::Duration kTimeout = absl::Seconds(60);

class WarmAdoptedTest : public testing::Test {
 protected:
  void SetUp() override {
    if (access(kPython, X_OK) != 0) GTEST_SKIP() << "there is no " << kPython;
    ASSERT_TRUE(server_.Start());
    StartLauncher();
  }
  void StartLauncher() {
    // Another environment would be another program's.
    launcher_ = StartNode(server_.port(), "1", 0,
                          {"--token-file", server_.token_file(), "--job-name", "job",
                           "--nproc-per-node", "2", "--adopt-timeout", "60s", "--stop-grace", "1s",
                           "--max-restarts", "5", "--", kPython, "-u", kScript, folder_},
                          {{"XDG_CACHE_HOME", folder_}, {"XDG_STATE_HOME", folder_}});
    ASSERT_NE(launcher_, nullptr);
  }
  // How both ranks of this life were started, in the words of warm_steps.py.
  void ExpectLife(int life, const std::string& how) {
    const std::string text = absl::StrCat(" life ", life, " is ");
    for (const std::string& line : launcher_->WaitForLines(text, 2, kTimeout)) {
      EXPECT_THAT(line, HasSubstr(text + how)) << OutputOf(*launcher_);
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      ASSERT_TRUE(absl::SimpleAtoi(words.back(), &pid_)) << line;
    }
  }
  std::string Status(const std::string& what) const {
    const auto status = StartCadre(
        {what, "job", "--server=" + server_.endpoint(), "--token-file=" + server_.token_file()});
    EXPECT_EQ(status->Wait(kTimeout), 0) << OutputOf(*status);
    return status->standard_output();
  }
  // Asks until the status has this in it.
  std::string AwaitStatus(const std::string& text) const {
    std::string status;
    for (const absl::Time end = absl::Now() + kTimeout; absl::Now() < end;) {
      status = Status("status");
      if (absl::StrContains(status, text)) break;
    }
    EXPECT_THAT(status, HasSubstr(text));
    return status;
  }

  MortalServer server_;
  const std::string folder_ = MakeTempDir("warm");
  std::unique_ptr<Process> launcher_;
  pid_t pid_ = 0;  // of a worker of the newest life
};

TEST_F(WarmAdoptedTest, TheTemplateOutlivesTheLauncher) {
  ExpectLife(0, "plain");
  EXPECT_THAT(AwaitStatus(" modules in "), HasSubstr("plainly: its first start"));
  launcher_->Kill(SIGKILL);
  launcher_->Wait();
  StartLauncher();
  ASSERT_TRUE(launcher_->WaitForLine("took over 2 workers of generation 1", kTimeout).has_value())
      << OutputOf(*launcher_);
  ASSERT_EQ(kill(pid_, SIGKILL), 0);
  ExpectLife(1, "warm");
  EXPECT_THAT(AwaitStatus("2 warm"), HasSubstr(" modules in "));
  ASSERT_EQ(kill(pid_, SIGKILL), 0);
  ExpectLife(2, "warm");
  EXPECT_THAT(
      Status("timeline"),
      testing::AllOf(HasSubstr("2, 2 warm"), HasSubstr("IMPORTS"),
                     HasSubstr("generation 1: started plainly, not warm: its first start")));
  std::ofstream(folder_ + "/done") << "\n";
  EXPECT_EQ(launcher_->Wait(kTimeout), 0) << OutputOf(*launcher_);
}

}  // namespace
}  // namespace cadre
