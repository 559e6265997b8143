// The DDP tutorial's programs.
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kTraining = absl::Minutes(2);

std::unique_ptr<Process> Start(const std::string& program, int ranks,
                               const std::vector<std::string>& flags,
                               const std::vector<std::string>& launcher_flags = {}) {
  std::vector<std::string> arguments = {"--nproc-per-node", absl::StrCat(ranks)};
  arguments.insert(arguments.end(), launcher_flags.begin(), launcher_flags.end());
  arguments.insert(arguments.end(), {"--", "examples/ddp_tutorial/" + program});
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return StartStandalone(arguments);
}

// Every hash that ranks printed.
std::multiset<std::string> HashesIn(const std::string& output) {
  const std::string before = "parameters equal on all ranks: ";
  std::multiset<std::string> hashes;
  for (size_t at = output.find(before); at != std::string::npos; at = output.find(before, at + 1)) {
    hashes.insert(output.substr(at + before.size(), 16));
  }
  return hashes;
}

TEST(DdpTutorialTest, Basic_AllRanksHaveTheSameParameters) {
  auto run = Start("basic", 3, {});
  ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
  const std::multiset<std::string> hashes = HashesIn(run->standard_output());
  ASSERT_EQ(hashes.size(), 3u) << OutputOf(*run);
  EXPECT_EQ(hashes.count(*hashes.begin()), 3u) << OutputOf(*run);
}

TEST(DdpTutorialTest, Spawn_ThreeRanksWithoutALauncherDoAsBasicDoes) {
  auto launched = Start("basic", 3, {});
  ASSERT_EQ(launched->Wait(kTraining), 0) << OutputOf(*launched);
  auto run = StartProgram("examples/ddp_tutorial/spawn", {"--ranks", "3"},
                          {{"XDG_RUNTIME_DIR", MakeTempDir("run")}, {"OMP_NUM_THREADS", "1"}});
  ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(run->standard_output(), HasSubstr(absl::StrCat("rank ", rank, " of 3: loss ")));
  }
  EXPECT_THAT(run->standard_output(), HasSubstr("all 3 ranks are done\n"));
  const std::multiset<std::string> hashes = HashesIn(run->standard_output());
  ASSERT_EQ(hashes.size(), 3u) << OutputOf(*run);
  EXPECT_EQ(hashes, HashesIn(launched->standard_output())) << OutputOf(*run);
}

TEST(DdpTutorialTest, Spawn_ARanksErrorIsThePrograms) {
  auto run = StartProgram("examples/ddp_tutorial/spawn", {"--device", "meadow"},
                          {{"XDG_RUNTIME_DIR", MakeTempDir("run")}});
  EXPECT_EQ(run->Wait(kTraining), 1);
  EXPECT_THAT(run->standard_error(), HasSubstr("spawn: INTERNAL: rank "));
  EXPECT_THAT(run->standard_error(), HasSubstr("meadow"));
}

TEST(DdpTutorialTest, Checkpoint_AllRanksLoadWhatRankZeroSaved) {
  auto run = Start("checkpoint", 2, {"--checkpoint-dir", MakeTempDir("tutorial")});
  ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
  for (int rank = 0; rank < 2; ++rank) {
    const std::string who = absl::StrCat("rank ", rank, " of 2: ");
    EXPECT_THAT(run->standard_output(),
                HasSubstr(who + "loaded the parameters of step 1 onto cpu\n"));
    EXPECT_THAT(run->standard_output(), HasSubstr(who + "trained on\n"));
  }
}

TEST(DdpTutorialTest, ModelParallel_TrainsAModelOverTwoDevices) {
  auto run = Start("model_parallel", 2, {"--first-device", "cpu", "--second-device", "cpu:0"});
  ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("rank 1 of 2: layers on cpu and cpu"));
  const std::multiset<std::string> hashes = HashesIn(run->standard_output());
  ASSERT_EQ(hashes.size(), 2u) << OutputOf(*run);
  EXPECT_EQ(*hashes.begin(), *hashes.rbegin());
}

// What a rank does that has two devices is split_model_test's.
TEST(DdpTutorialTest, ModelParallel_OneProcessTrainsOnTheHost) {
  auto run = Start("model_parallel", 1, {"--first-device", "cpu", "--second-device", "cpu"});
  ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("rank 0 of 1: layers on cpu and cpu"));
  auto by_itself = Start("model_parallel", 1, {});
  ASSERT_EQ(by_itself->Wait(kTraining), 0) << OutputOf(*by_itself);
  EXPECT_EQ(HashesIn(by_itself->standard_output()).size(), 1u) << OutputOf(*by_itself);
}

TEST(DdpTutorialTest, ModelParallel_ADeviceThatIsNotThereIsNamed) {
  auto run = Start("model_parallel", 1, {"--second-device", "meadow"});
  EXPECT_EQ(run->Wait(kTraining), 1);
  EXPECT_THAT(OutputOf(*run), HasSubstr("meadow"));
}

TEST(DdpTutorialTest, Elastic_AKilledWorkerChangesNothingInTheResult) {
  auto undisturbed = Start("elastic", 2, {"--checkpoint-dir", MakeTempDir("elastic")});
  ASSERT_EQ(undisturbed->Wait(kTraining), 0) << OutputOf(*undisturbed);
  EXPECT_THAT(undisturbed->standard_output(), Not(HasSubstr("life 2")));

  auto killed =
      Start("elastic", 2, {"--checkpoint-dir", MakeTempDir("elastic"), "--fail-rank", "1"},
            {"--max-restarts", "1"});
  ASSERT_EQ(killed->Wait(kTraining), 0) << OutputOf(*killed);
  const std::string& output = killed->standard_output();
  EXPECT_THAT(output, HasSubstr("rank 1 of 2: life 1 begins after step 0\n"));
  EXPECT_THAT(output, HasSubstr("rank 1 kills itself before step 12, as asked\n"));
  EXPECT_THAT(output, HasSubstr("rank 0 of 2: life 2 begins after step 10\n"));
  EXPECT_THAT(output, HasSubstr("rank 1 of 2: life 2 begins after step 10\n"));

  ASSERT_EQ(HashesIn(output).size(), 1u) << OutputOf(*killed);
  EXPECT_EQ(HashesIn(output), HashesIn(undisturbed->standard_output()));
}

TEST(DdpTutorialTest, Elastic_ADamagedCheckpointIsPassedOverAndSaid) {
  const std::string directory = MakeTempDir("elastic");
  auto first = Start("elastic", 2, {"--checkpoint-dir", directory});
  ASSERT_EQ(first->Wait(kTraining), 0) << OutputOf(*first);
  std::ofstream(directory + "/step_20_g1/data", std::ios::app) << "more";
  auto run = Start("elastic", 2, {"--checkpoint-dir", directory});
  ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("step 15 is used instead\n"));
  EXPECT_THAT(run->standard_output(), HasSubstr("rank 1 of 2: life 1 begins after step 15\n"));
  EXPECT_EQ(HashesIn(run->standard_output()), HashesIn(first->standard_output()));
}

}  // namespace
}  // namespace cadre
