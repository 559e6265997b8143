#include "worker_runtime/nccl/root_plan.h"

#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::nccl {
namespace {

TEST(RootPlanTest, OneRootPer128Ranks) {
  EXPECT_EQ(RootCount(1, true), 1);
  EXPECT_EQ(RootCount(kMaxRanksPerRoot, true), 1);
  EXPECT_EQ(RootCount(kMaxRanksPerRoot + 1, true), 2);
  EXPECT_EQ(RootCount(1024, true), 8);
  EXPECT_EQ(RootCount(1025, true), 9);
  EXPECT_EQ(RootCount(1024, false), 1);
}

TEST(RootPlanTest, KnownLayouts) {
  // 10 ranks, 3 roots: 0-3, 4-6, 7-9.
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
