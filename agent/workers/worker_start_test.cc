#include "agent/workers/worker_start.h"

#include <errno.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PrepareWorkersTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path =
        std::filesystem::path(testing::TempDir() + "/start_XXXXXX").lexically_normal();
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    options_.output.log_dir = path + "/logs";
    options_.scratch = path + "/scratch";
    options_.environment.job = "mnist";
    options_.environment.generation = 2;
    options_.environment.assign.set_run("5Z");
    options_.environment.assign.set_first_rank(4);
    options_.environment.assign.set_local_world_size(2);
    options_.environment.assign.set_world_size(8);
    options_.environment.spec.add_command("train");
    options_.environment.spec.add_command("--gpu=${local_rank}");
    options_.environment.spec.set_working_dir("/data");
  }

  WorkerStartOptions options_;
};

TEST_F(PrepareWorkersTest, EveryWorker_HasItsOwnPathsAndArguments) {
  const auto frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  ASSERT_EQ(frames->size(), 2u);
  const supervisor::StartFrame& second = (*frames)[1];
  const std::string directory = options_.output.log_dir + "/mnist/run_5Z/generation_2/rank_5";
  EXPECT_THAT(second.argv, ElementsAre("train", "--gpu=1"));
  EXPECT_EQ(second.stdout_path, directory + "/stdout.log");
  EXPECT_EQ(second.stderr_path, directory + "/stderr.log");
  EXPECT_EQ(second.error_file, directory + "/error.json");
  EXPECT_EQ(second.working_dir, "/data");
  EXPECT_THAT(second.environment, testing::Contains("RANK=5"));
  EXPECT_THAT(second.environment,
              testing::Contains("TORCHELASTIC_ERROR_FILE=" + directory + "/error.json"));
  EXPECT_TRUE(std::filesystem::is_directory(directory));
  EXPECT_THAT(second.cpus, IsEmpty());
}

TEST_F(PrepareWorkersTest, NoLogDirectory_ErrorFilesGoToScratch) {
  options_.output.log_dir.clear();
  const auto frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  EXPECT_EQ((*frames)[0].stdout_path, "");
  EXPECT_THAT((*frames)[0].error_file, HasSubstr(options_.scratch));
}

TEST_F(PrepareWorkersTest, RelativeLogDirectory_IsMadeAbsoluteForTheWorker) {
  options_.output.log_dir =
      std::filesystem::relative(options_.output.log_dir, std::filesystem::current_path());
  const auto frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  EXPECT_EQ((*frames)[0].error_file[0], '/');
}

TEST_F(PrepareWorkersTest, Routing_ChoosesFilesAndTerminal) {
  options_.output.standard_output = {{true, false}};
  options_.output.standard_error = {{false, true}, {true, true}};
  options_.output.terminal_ranks = {4};
  const auto frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  EXPECT_FALSE((*frames)[0].forward_stdout);
  EXPECT_TRUE((*frames)[0].forward_stderr);
  EXPECT_EQ((*frames)[0].stderr_path, "");
  EXPECT_FALSE((*frames)[1].forward_stdout);
  EXPECT_NE((*frames)[1].stdout_path, "");
}

TEST_F(PrepareWorkersTest, LogDirectoryThatCannotBeMade_IsNamed) {
  options_.output.log_dir = "/proc/none";
  EXPECT_THAT(PrepareWorkers(options_).status().message(), HasSubstr("/proc/none"));
}

TEST_F(PrepareWorkersTest, FileInPlaceOfTheLogDirectory_GivesPathAndErrno) {
  std::ofstream(options_.output.log_dir) << "x";
  DirectoryFailure failure;
  EXPECT_FALSE(PrepareWorkers(options_, &failure).ok());
  EXPECT_EQ(failure.error, ENOTDIR);
  EXPECT_EQ(failure.path, options_.output.log_dir);
}

TEST_F(PrepareWorkersTest, LogDirectoryThatDoesNotAnswer_WorkersDoWithout) {
  DirectoryFailure failure;
  std::set<std::string> asked;
  const auto frames = PrepareWorkers(
      options_, &failure,
      [&](const std::string& log_dir, const std::string& below, int* error) -> absl::Status {
        asked.insert(log_dir + "/" + below);
        *error = ETIMEDOUT;
        return absl::DeadlineExceededError("late");
      });
  ASSERT_OK(frames);
  const std::string generation = options_.output.log_dir + "/mnist/run_5Z/generation_2";
  EXPECT_THAT(asked, ElementsAre(generation + "/rank_4", generation + "/rank_5"));
  EXPECT_EQ(failure.error, ETIMEDOUT);
  EXPECT_EQ(failure.path, options_.output.log_dir);
  EXPECT_EQ((*frames)[1].stdout_path, "");
  EXPECT_THAT((*frames)[1].error_file, HasSubstr(options_.scratch));
  EXPECT_FALSE(std::filesystem::exists(options_.output.log_dir));
}

TEST_F(PrepareWorkersTest, UnknownBinding_IsRefused) {
  options_.environment.workers.bind = "socket";
  EXPECT_THAT(PrepareWorkers(options_), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(PrepareWorkersTest, BindNuma_GivesCpus) {
  options_.environment.workers.bind = "numa";
  const auto frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  EXPECT_FALSE((*frames)[1].cpus.empty());
}

TEST_F(PrepareWorkersTest, AProcessThatStandsBy_HasNoRank) {
  options_.environment.base = {"RANK=7", "HOME=/home/u"};
  options_.environment.spec.set_command(1, "--fast");
  const auto frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  const auto like = StandbyFor(*frames);
  ASSERT_TRUE(like.has_value());
  EXPECT_TRUE(like->stands_by);
  const supervisor::StartFrame standby = StandbyFrame(*like, 1, "/run/touch");
  const std::string directory = options_.output.log_dir + "/mnist/run_5Z/generation_2/standby_1";
  EXPECT_EQ(standby.stdout_path, directory + "/stdout.log");
  EXPECT_EQ(standby.stderr_path, directory + "/stderr.log");
  EXPECT_EQ(standby.error_file, directory + "/error.json");
  EXPECT_THAT(standby.environment, testing::IsSupersetOf({"CADRE_PROGRESS_FILE=/run/touch",
                                                          "HOME=/home/u", "CADRE_JOB=mnist"}));
  // What it lacks it is told with its place.
  std::set<std::string> names;
  for (const std::string& entry : standby.environment) {
    EXPECT_TRUE(names.insert(entry.substr(0, entry.find('='))).second) << entry;
  }
  names.erase("CADRE_PROGRESS_FILE");
  names.erase("TORCHELASTIC_ERROR_FILE");
  const supervisor::StartFrame& second = (*frames)[1];
  for (const std::string& entry : second.assignment) {
    EXPECT_TRUE(names.insert(entry.substr(0, entry.find('='))).second) << entry;
  }
  EXPECT_EQ(names.size(), second.environment.size());
  EXPECT_THAT(second.assignment, testing::IsSupersetOf({"LOCAL_RANK=1", "CADRE_GENERATION=2"}));
}

TEST_F(PrepareWorkersTest, NothingStandsBy_WhereTheLocalRankDecidesHowAProcessStarts) {
  // --gpu=${local_rank}
  auto frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  EXPECT_FALSE(StandbyFor(*frames).has_value());
  options_.environment.spec.set_command(1, "--fast");
  options_.environment.workers.gpus_per_worker_own = true;
  frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  EXPECT_FALSE(StandbyFor(*frames).has_value());
}

}  // namespace
}  // namespace cadre::agent
