// Processes that share one NCCL id: with a GPU they sum their ranks, without they say why they
// stop.
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/end_to_end/launch.h"

namespace cadre {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kProgram[] = "examples/spawn_with_nccl_id/spawn_with_nccl_id";

// "0123456789abcdef" of "minted an id, fingerprint 0123456789abcdef".
std::string FingerprintIn(const std::string& output) {
  const std::string before = "minted an id, fingerprint ";
  const size_t at = output.find(before);
  EXPECT_NE(at, std::string::npos) << output;
  return at == std::string::npos ? "" : output.substr(at + before.size(), 16);
}

TEST(SpawnWithNcclIdTest, HoldersJoinAndTheStrangerDoesNot) {
  auto run = StartStandalone(
      {"--nproc-per-node", "1", "--", kProgram, "--processes", "3", "--with-stranger"});
  ASSERT_EQ(run->Wait(absl::Minutes(2)), 0) << Said(*run);
  const std::string& output = run->standard_output();
  if (absl::StrContains(output, "stops here, without an id: ")) GTEST_SKIP() << output;

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
  EXPECT_THAT(output, AnyOf(HasSubstr("stops here, before ncclCommInitRank: "),
                            HasSubstr("NCCL's sum of 1 to 3 is 6\n")));
}

TEST(SpawnWithNcclIdTest, WithoutAnIdThereIsNothingToJoin) {
  auto run = StartStandalone({"--nproc-per-node", "1", "--", kProgram, "--local-rank", "0",
                              "--gate", "/nonexistent/gate"});
  EXPECT_EQ(run->Wait(), 1) << Said(*run);
  EXPECT_THAT(Said(*run), Not(HasSubstr("joined")));
}

}  // namespace
}  // namespace cadre
