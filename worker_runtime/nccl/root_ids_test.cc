#include "worker_runtime/nccl/root_ids.h"

#include <stdlib.h>

#include <chrono>
#include <map>
#include <set>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "cadre/nccl/unique_id.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
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
  // There are two attempts, because a communicator may be opened again under its name.
  std::set<std::string> seen;
  for (int attempt = 0; attempt < 2; ++attempt) {
    std::vector<std::vector<std::string>> ids(4);
    workers.Run([&ids](Worker& worker) {
      auto formation = Formation::Begin(worker, "world");
      ASSERT_OK(formation);
      auto shared = formation->ShareIds(kRoots, MonoNow() + kLong);
      ASSERT_OK(shared);
      ids[worker.rank()] = *shared;
      EXPECT_OK(formation->CheckForFailure());
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
  EXPECT_LT(MonoNow() - start, absl::FromChrono(kFailureCheckInterval * 10));
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

TEST(RootPlanTest, OneRootPer128Ranks) {
  EXPECT_EQ(RootCount(1, true), 1);
  EXPECT_EQ(RootCount(kMaxRanksPerRoot, true), 1);
  EXPECT_EQ(RootCount(kMaxRanksPerRoot + 1, true), 2);
  EXPECT_EQ(RootCount(1024, true), 8);
  EXPECT_EQ(RootCount(1025, true), 9);
  EXPECT_EQ(RootCount(1024, false), 1);
}

TEST(RootPlanTest, KnownLayouts) {
  // 10 ranks with 3 roots are 0-3, 4-6 and 7-9.
  for (int rank = 0; rank < 10; ++rank) {
    EXPECT_EQ(RankHasRoot(rank, 10, 3), rank == 0 || rank == 4 || rank == 7) << rank;
  }
  EXPECT_EQ(RootOfRank(3, 10, 3), 0);
  EXPECT_EQ(RootOfRank(4, 10, 3), 1);
  EXPECT_EQ(RootOfRank(9, 10, 3), 2);
  for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(RankHasRoot(rank, 4, 4));
}

TEST(RootPlanTest, EveryRootHasOneFirstRankAndAnEqualShare) {
  for (int size = 1; size <= 300; size += 7) {
    for (int roots = 1; roots <= size; roots += 3) {
      std::map<int, int> firsts, served;
      int previous = 0;
      for (int rank = 0; rank < size; ++rank) {
        const int root = RootOfRank(rank, size, roots);
        ASSERT_GE(root, previous);
        previous = root;
        ++served[root];
        if (!RankHasRoot(rank, size, roots)) continue;
        ++firsts[root];
        ASSERT_EQ(served[root], 1) << "the first rank of a root has it";
      }
      ASSERT_EQ(static_cast<int>(served.size()), roots);
      for (const auto& [root, count] : served) {
        ASSERT_EQ(firsts[root], 1);
        ASSERT_GE(count, size / roots);
        ASSERT_LE(count, size / roots + 1);
      }
    }
  }
}

}  // namespace

}  // namespace cadre::nccl
