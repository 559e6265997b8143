#include "launcher/commands/job_source.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"

namespace cadre::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Gives the test a home and a working directory of its own, with runs of jobs in ./logs. No
// launcher runs, and no server answers.
class JobSourceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/source_XXXXXX";
    ASSERT_NE(mkdtemp(&name[0]), nullptr);
    directory_ = std::filesystem::canonical(name);
    for (const char* variable : {"HOME", "XDG_RUNTIME_DIR"}) {
      const char* const value = getenv(variable);
      if (value != nullptr) before_[variable] = value;
      setenv(variable, directory_.c_str(), 1);
    }
    working_dir_before_ = std::filesystem::current_path();
    ASSERT_EQ(chdir(directory_.c_str()), 0);
  }
  void TearDown() override {
    for (const char* variable : {"HOME", "XDG_RUNTIME_DIR"}) {
      unsetenv(variable);
      if (before_.count(variable) > 0) setenv(variable, before_[variable].c_str(), 1);
    }
    if (working_dir_before_.empty()) return;
    ASSERT_EQ(chdir(working_dir_before_.c_str()), 0);
  }
  void Run(const std::string& logs, const std::string& job, const std::string& day) {
    std::filesystem::create_directories(
        absl::StrCat(directory_, "/", logs, "/", job, "/run_", day, "T011933.123456Z"));
  }
  absl::StatusOr<JobSource> Find(const std::string& wanted, std::map<std::string, std::string> env,
                                 const std::string& log_dir = "") {
    Parsed parsed;
    if (!log_dir.empty()) parsed.flags["log-dir"] = {log_dir};
    return JobSource::Open(Settings(parsed, std::move(env), JobSourceFlags()), wanted);
  }
  std::string WhyNot(const std::string& wanted) {
    return std::string(Find(wanted, {}).status().message());
  }

  std::string directory_;
  // The environment of the process, which other tests need again.
  std::map<std::string, std::string> before_;
  std::string working_dir_before_;
};

TEST_F(JobSourceTest, AScriptsNameIsItsJobs) {
  Run("logs", "train-gpt", "20261122");
  for (const char* wanted :
       {"train-gpt", "train_gpt.py", "Train_GPT", "./train_gpt.py", "work/train_gpt.py"}) {
    const auto source = Find(wanted, {});
    ASSERT_OK(source) << wanted;
    EXPECT_EQ(source->job(), "train-gpt");
    EXPECT_EQ(source->chosen(), "");
  }
}

TEST_F(JobSourceTest, ANearMissIsSuggestedWithTheNewestNames) {
  Run("logs", "train-gpt", "20261122");
  for (int i = 1; i < 7; ++i) Run("logs", absl::StrCat("other", i), absl::StrCat("2026112", i));
  const std::string newest = " The newest jobs are other6, other5, other4, other3, other2";
  EXPECT_THAT(WhyNot("trian-gpt"),
              testing::EndsWith(absl::StrCat("; did you mean 'train-gpt'?", newest)));
  EXPECT_THAT(WhyNot("tran_gpt.py"), HasSubstr("; did you mean 'train-gpt'?"));
  EXPECT_THAT(WhyNot("train"), HasSubstr("; did you mean 'train-gpt'?"));
  EXPECT_THAT(WhyNot("zzzzzzzz"),
              AllOf(HasSubstr("; the newest jobs are other6"), Not(HasSubstr("did you mean"))));
  EXPECT_THAT(std::string(Find("trian-gpt", {}, directory_ + "/logs").status().message()),
              HasSubstr("; did you mean 'train-gpt'?"));
}

TEST_F(JobSourceTest, WithoutANameItIsTheNewestRunOfAllDirectories) {
  EXPECT_THAT(WhyNot(""), HasSubstr("no log directory is known; name a JOB"));
  Run("logs", "a", "20261122");
  Run("elsewhere", "a", "20261124");
  Run("elsewhere", "b", "20261123");
  RememberLogDirectory(directory_ + "/elsewhere");
  auto source = Find("", {});
  ASSERT_OK(source);
  EXPECT_EQ(source->job(), "a");
  EXPECT_EQ(source->log_dir(), directory_ + "/elsewhere");
  EXPECT_THAT(source->chosen(), AllOf(HasSubstr("the newest job is a, whose run of 2026-11-2"),
                                      HasSubstr(source->log_dir())));
  source = Find("", {}, directory_ + "/logs");
  ASSERT_OK(source);
  EXPECT_EQ(source->log_dir(), directory_ + "/logs");
}

// The variable is set for `cadre run`. For other commands it adds a directory as --log-dir does,
// but must not keep them from asking launchers and servers.
TEST_F(JobSourceTest, TheVariableOfTheLogDirectoryIsOnePlaceMore) {
  Run("logs", "a", "20261122");
  Run("other", "b", "20261122");
  const std::map<std::string, std::string> env = {{"CADRE_LOG_DIR", directory_ + "/other"}};
  EXPECT_OK(Find("a", env));
  EXPECT_OK(Find("b", env));
}

TEST(LastingNameTest, IsTheIdWhereTheServerKnowsTheJobByIt) {
  v1::JobStatus job;
  job.set_name("mnist");
  EXPECT_EQ(LastingName(job), "mnist") << "nodes brought it";
  job.set_submission(57);
  EXPECT_EQ(LastingName(job), "mnist") << "a server of an earlier version";
  job.set_submitted_unix_ms(1795951438000);
  EXPECT_EQ(LastingName(job), "57");
}

}  // namespace
}  // namespace cadre::launcher
