#include "worker_runtime/nccl/root_ids.h"

#include <stdlib.h>

#include <chrono>
#include <set>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "cadre/nccl/unique_id.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::nccl {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

class FormationTest : public ::testing::Test {
 protected:
  // NCCL binds an interface even for the id alone; a test machine may have no other.
  static void SetUpTestSuite() { setenv("NCCL_SOCKET_IFNAME", "lo", 1); }
};

TEST_F(FormationTest, AllRanksGetTheSameIdsOfAllRoots) {
  const auto probe = MintNcclUniqueId();
  if (!probe.ok()) GTEST_SKIP() << probe.status();
  constexpr int kRoots = 3;
  testing::InProcessWorkers workers(4);
  // Twice, because a communicator may be opened again under its name.
  std::set<std::string> seen;
  for (int attempt = 0; attempt < 2; ++attempt) {
    std::vector<std::vector<std::string>> ids(4);
    workers.Run([&ids](Worker& worker) {
      auto formation = Formation::Begin(worker, "world");
      ASSERT_OK(formation);
      auto shared = formation->ShareIds(kRoots, MonoNow() + kLong);
      ASSERT_OK(shared);
      ids[worker.rank()] = *shared;
      EXPECT_OK(formation->LookForFailure());
    });
    EXPECT_EQ(ids[0].size(), static_cast<size_t>(kRoots));
    for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(ids[rank], ids[0]);
    seen.insert(ids[0].begin(), ids[0].end());
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(2 * kRoots));
}

TEST_F(FormationTest, WhoWaitsHearsWhoFailedFirst) {
  testing::InProcessWorkers workers(3);
  auto failed = Formation::Begin(workers.worker(0), "world");
  auto waiting = Formation::Begin(workers.worker(1), "world");
  auto late = Formation::Begin(workers.worker(2), "world");
  ASSERT_OK(failed);
  ASSERT_OK(waiting);
  ASSERT_OK(late);
  failed->ReportFailure(FailedPreconditionError("no GPU"));
  late->ReportFailure(InternalError("something else"));
  const MonoTime start = MonoNow();
  EXPECT_THAT(waiting->ShareIds(1, start + kLong),
              StatusIs(StatusCode::kUnavailable, "rank 0: no GPU"));
  EXPECT_LT(MonoNow() - start, absl::FromChrono(kFailureLookInterval * 10));
}

TEST_F(FormationTest, WaitingEnds) {
  testing::InProcessWorkers workers(2);
  auto formation = Formation::Begin(workers.worker(1), "world");
  ASSERT_OK(formation);
  EXPECT_THAT(formation->ShareIds(1, MonoNow() + std::chrono::milliseconds(5)),
              StatusIs(StatusCode::kDeadlineExceeded));
  workers.EndGeneration();
  EXPECT_THAT(formation->ShareIds(1, MonoNow() + kLong), StatusIs(StatusCode::kAborted));
}

TEST_F(FormationTest, RefusesNamesThatAreNone) {
  testing::InProcessWorkers workers(1);
  EXPECT_THAT(Formation::Begin(workers.worker(0), ""), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(Formation::Begin(workers.worker(0), std::string(kMaxNcclCommunicatorName + 1, 'n')),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("101")));
}

}  // namespace
}  // namespace cadre::nccl
