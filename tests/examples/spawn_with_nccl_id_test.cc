// Processes that share one NCCL id: with GPUs they train to the end, without they fail.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/examples/number_after.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kProgram[] = "examples/spawn_with_nccl_id/spawn_with_nccl_id";
// CUDA and NCCL without a GPU.
constexpr char kPretendGpu[] = "worker_runtime/testing/pretend_gpu/libpretend_gpu.so";
constexpr absl::Duration kTraining = absl::Minutes(3);

// Under `cadre run`, on a machine that has so many GPUs.
std::unique_ptr<Process> StartOnPretendGpus(int gpus, const std::vector<std::string>& flags) {
  std::vector<std::string> arguments = {"run", "--standalone", "--nproc-per-node",
                                        "1",   "--",           kProgram};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return StartCadre(arguments, {{"CADRE_CUDART_LIBRARY", kPretendGpu},
                                {"CADRE_NCCL_LIBRARY", kPretendGpu},
                                {"CADRE_PRETEND_GPUS", absl::StrCat(gpus)}});
}

// "0123456789abcdef" of "minted an id, fingerprint 0123456789abcdef".
std::string FingerprintIn(const std::string& output) {
  const std::string before = "minted an id, fingerprint ";
  const size_t at = output.find(before);
  EXPECT_NE(at, std::string::npos) << output;
  return at == std::string::npos ? "" : output.substr(at + before.size(), 16);
}

// This build has no NCCL.
bool IsWithoutNccl(const Process& run) {
  return absl::StrContains(run.standard_error(), "nothing is trained without an id: ");
}

TEST(SpawnWithNcclIdTest, HoldersJoinAndTheStrangerDoesNot) {
  auto run = StartOnPretendGpus(
      3, {"--processes", "3", "--with-stranger", "--epochs", "1", "--limit", "256"});
  const auto status = run->Wait(kTraining);
  if (IsWithoutNccl(*run)) GTEST_SKIP() << OutputOf(*run);
  ASSERT_EQ(status, 0) << OutputOf(*run);
  const std::string& output = run->standard_output();

  const std::string fingerprint = FingerprintIn(output);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string who = absl::StrCat("local rank ", rank, " of 3: ");
    EXPECT_THAT(output, HasSubstr(absl::StrCat(who, "got an id of 128 bytes, fingerprint ",
                                               fingerprint, "\n")));
    EXPECT_THAT(output, HasSubstr(who + "joined\n"));
  }
  EXPECT_THAT(output, HasSubstr("sent a stranger away: it does not hold the id\n"));
  EXPECT_THAT(output, HasSubstr("all 3 joined\n"));
  EXPECT_THAT(run->standard_error(), HasSubstr("local rank 0 of 3: it does not hold the id"));
  EXPECT_THAT(output, HasSubstr("parameters equal on 3 ranks\n"));
}

// All join, and nothing is trained: whoever waits for the training hears of it.
TEST(SpawnWithNcclIdTest, WithoutAGpuItFails) {
  auto run = StartOnPretendGpus(0, {"--processes", "2"});
  EXPECT_EQ(run->Wait(kTraining), 1) << OutputOf(*run);
  if (IsWithoutNccl(*run)) GTEST_SKIP() << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("all 2 joined\n"));
  EXPECT_THAT(run->standard_error(), HasSubstr("nothing is trained without a GPU: no GPU here"));
}

TEST(SpawnWithNcclIdTest, WithoutNcclItFails) {
  auto run = StartCadre({"run", "--standalone", "--nproc-per-node", "1", "--", kProgram},
                        {{"CADRE_NCCL_LIBRARY", "/nonexistent/libnccl.so"}});
  EXPECT_EQ(run->Wait(kTraining), 1) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("nothing is trained without an id: "));
}

// Two processes with half of a batch each do what one does with the whole.
TEST(SpawnWithNcclIdTest, HoldersTrainToTheEndAsOneWould) {
  // Slowly, so that what is rounded otherwise stays small.
  const std::vector<std::string> flags = {"--epochs", "2", "--limit", "2048", "--lr", "0.01"};
  const auto with = [&flags](std::vector<std::string> more) {
    more.insert(more.end(), flags.begin(), flags.end());
    return more;
  };
  auto alone = StartOnPretendGpus(1, with({"--processes", "1", "--batch-size", "64"}));
  const auto status = alone->Wait(kTraining);
  if (IsWithoutNccl(*alone)) GTEST_SKIP() << OutputOf(*alone);
  ASSERT_EQ(status, 0) << OutputOf(*alone);
  auto two =
      StartOnPretendGpus(2, with({"--processes", "2", "--batch-size", "32", "--with-stranger"}));
  ASSERT_EQ(two->Wait(kTraining), 0) << OutputOf(*two);
  const std::string one_said = alone->standard_output(), two_said = two->standard_output();

  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(two_said,
                HasSubstr(absl::StrCat("local rank ", rank, " of 2: trained to the end")));
  }
  EXPECT_THAT(two_said, HasSubstr("sent a stranger away: "));
  EXPECT_THAT(two_said, HasSubstr("Starting Epoch 1:\n"));
  EXPECT_THAT(two_said, HasSubstr("parameters equal on 2 ranks\n"));
  // The sum over steps and ranks.
  const double loss = NumberAfter(one_said, "Training loss = ");
  EXPECT_GT(loss, 0) << one_said;
  EXPECT_NEAR(NumberAfter(two_said, "Training loss = "), 2 * loss, 0.02 * loss) << two_said;
  const double accuracy = NumberAfter(one_said, "Evaluation accuracy = ");
  EXPECT_GT(accuracy, 0.5) << one_said;
  EXPECT_NEAR(NumberAfter(two_said, "Evaluation accuracy = "), accuracy, 0.02) << two_said;
}

TEST(SpawnWithNcclIdTest, MoreProcessesThanGpusShareThem) {
  auto run = StartOnPretendGpus(1, {"--processes", "2", "--epochs", "1", "--limit", "256"});
  const auto status = run->Wait(kTraining);
  if (IsWithoutNccl(*run)) GTEST_SKIP() << OutputOf(*run);
  ASSERT_EQ(status, 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("parameters equal on 2 ranks\n"));
}

TEST(SpawnWithNcclIdTest, AnErrorOfTheTrainingIsThePrograms) {
  auto run = StartOnPretendGpus(2, {"--data-dir", "/nonexistent"});
  EXPECT_EQ(run->Wait(kTraining), 1) << OutputOf(*run);
  if (IsWithoutNccl(*run)) GTEST_SKIP() << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("local rank 0 of 2: "));
  EXPECT_THAT(run->standard_error(), HasSubstr("/nonexistent"));
  EXPECT_THAT(run->standard_error(), HasSubstr("2 processes failed"));
}

TEST(SpawnWithNcclIdTest, WithoutAnIdThereIsNothingToJoin) {
  auto run = StartStandalone({"--nproc-per-node", "1", "--", kProgram, "--local-rank", "0",
                              "--gate", "/nonexistent/gate"});
  EXPECT_EQ(run->Wait(), 1) << OutputOf(*run);
  EXPECT_THAT(OutputOf(*run), Not(HasSubstr("joined")));
}

}  // namespace
}  // namespace cadre
