#include "rendezvous/log/state_format.h"

#include "base/status_matchers.h"

namespace cadre::log {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

absl::Status Check(int64_t format) {
  return CheckStateFormat("/state/state.db", format, "move the directory away", {2, 3});
}

TEST(StateFormat, FromTheOldestToTheNewestIsRead) {
  EXPECT_OK(Check(2));
  EXPECT_OK(Check(3));
}

TEST(StateFormat, ANewerOneIsRefusedInOneLine) {
  EXPECT_THAT(Check(4),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("/state/state.db has format 4, of a newer"),
                             HasSubstr("or move the directory away"), Not(HasSubstr("\n")))));
}

TEST(StateFormat, AnOlderOneNeedsTheVersionThatWroteIt) {
  EXPECT_THAT(Check(1), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr("has format 1"), HasSubstr("that wrote it"))));
}

}  // namespace
}  // namespace cadre::log
