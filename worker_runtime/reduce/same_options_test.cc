#include "cadre/same_options.h"

#include "gmock/gmock.h"
#include "worker_runtime/testing/reducer_rig.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using testing::kLong;

TEST(SameOptions, AreFine) {
  testing::OnEachRank(3, [](Communicator& communicator) {
    EXPECT_OK(CheckSameOptions(communicator, {{"size", "4"}, {"way", "none"}}, kLong));
    EXPECT_OK(CheckSameOptions(communicator, {}, kLong));
  });
}

TEST(SameOptions, OrTheFirstThatDiffersIsNamedOnAllRanks) {
  testing::OnEachRank(3, [](Communicator& communicator) {
    const bool other = communicator.rank() == 1;
    EXPECT_THAT(
        CheckSameOptions(communicator, {{"size", "4"}, {"way", other ? "all" : "none"}}, kLong),
        StatusIs(StatusCode::kInvalidArgument,
                 "rank 1 has way all, rank 0 has way none; all ranks must pass the same"));
  });
}

// The end of a text that is too long is not shown, but still compared.
TEST(SameOptions, ThatAreLongAreNamedAsFarAsTheyGo) {
  testing::OnEachRank(2, [](Communicator& communicator) {
    const std::string last(1, static_cast<char>('a' + communicator.rank()));
    EXPECT_THAT(CheckSameOptions(communicator, {{"text", std::string(5000, '-') + last}}, kLong),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("rank 1 has text ---")));
  });
}

}  // namespace
}  // namespace cadre
