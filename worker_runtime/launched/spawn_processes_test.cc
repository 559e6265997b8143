#include "worker_runtime/launched/spawn_processes.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launched {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const RankEnd kWell = {0, 100, "exited with status 0", Outcome{}};
const RankEnd kKilled = {3, 103, "was ended by signal 9 (SIGKILL)", std::nullopt};

RankEnd WithError(int rank, const Status& status) {
  return {rank, 100 + rank, "exited with status 1", Outcome::Of(status)};
}

TEST(CauseAmongTest, AllWell) {
  EXPECT_OK(CauseAmong({}));
  EXPECT_OK(CauseAmong({kWell, kWell}));
}

TEST(CauseAmongTest, WhoSaidNothingFailedFirst) {
  EXPECT_THAT(
      CauseAmong({kWell, WithError(1, InvalidArgumentError("shape")), kKilled}),
      StatusIs(StatusCode::kInternal,
               "rank 3 (process 103) was ended by signal 9 (SIGKILL) before it had done its "
               "part of Spawn()"));
  // It never came to the call.
  EXPECT_THAT(CauseAmong({{2, 102, "exited with status 0", std::nullopt}}),
              StatusIs(StatusCode::kInternal, HasSubstr("exited with status 0 before")));
}

TEST(CauseAmongTest, AnErrorOfItsOwnComesBeforeOneThatAnotherCaused) {
  EXPECT_THAT(CauseAmong({WithError(0, AbortedError("rank 2 aborted")),
                          WithError(1, UnavailableError("rank 2 is gone")),
                          WithError(2, DataLossError("a torn file"))}),
              StatusIs(StatusCode::kDataLoss, "rank 2 (process 102) failed: a torn file"));
  EXPECT_THAT(CauseAmong({WithError(1, DeadlineExceededError("late"))}).message(),
              StartsWith("rank 1 (process 101) failed: late"));
}

}  // namespace

}  // namespace cadre::launched
