#include "launcher/slurm/program_output.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Minutes(1);

TEST(ProgramOutputTest, BothStreamsAndTheStatus) {
  const auto output =
      RunProgram({"sh", "-c", "echo out; echo one >&2; echo two >&2; exit 3"}, kPatience);
  ASSERT_OK(output);
  EXPECT_EQ(output->status, 3);
  EXPECT_EQ(output->standard_output, "out\n");
  EXPECT_EQ(ErrorLine(*output), "one; two");
}

TEST(ProgramOutputTest, KilledBySignal) {
  const auto output = RunProgram({"sh", "-c", "kill -9 $$"}, kPatience);
  ASSERT_OK(output);
  EXPECT_EQ(output->status, 137);
  EXPECT_EQ(ErrorLine(*output), "exit status 137");
}

TEST(ProgramOutputTest, NoSuchProgram) {
  EXPECT_THAT(RunProgram({"no-such-program-here"}, kPatience).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no-such-program-here")));
}

TEST(ProgramOutputTest, OneThatHangsIsKilledWithItsChildren) {
  EXPECT_THAT(
      RunProgram({"sh", "-c", "sleep 600 & sleep 600"}, absl::Milliseconds(200)).status(),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("sh did not end within 200ms")));
}

}  // namespace
}  // namespace cadre::launcher
