#include "share.h"

#include <set>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::imagenet {
namespace {

using ::testing::HasSubstr;

TEST(ShareTest, ComesFromNodeRankAndDevice) {
  const JobSize job = {/*nodes=*/2, /*devices_per_node=*/4, /*batch_size=*/256, /*data_workers=*/6};
  const Result<Share> share = ShareOf(job, /*node_rank=*/1, /*device=*/2);
  ASSERT_OK(share);
  EXPECT_EQ(share->world_size, 8);
  EXPECT_EQ(share->rank, 6);
  EXPECT_EQ(share->batch_size, 64);
  EXPECT_EQ(share->data_workers, 2);
}

TEST(ShareTest, EveryRankExistsOnce) {
  const JobSize job = {3, 5, 50, 0};
  std::set<int> ranks;
  for (int node = 0; node < 3; ++node) {
    for (int device = 0; device < 5; ++device) {
      const Result<Share> share = ShareOf(job, node, device);
      ASSERT_OK(share);
      ranks.insert(share->rank);
    }
  }
  EXPECT_EQ(ranks.size(), 15u);
  EXPECT_EQ(*ranks.begin(), 0);
  EXPECT_EQ(*ranks.rbegin(), 14);
}

// Of pictures that are sorted by classes, as folders are: three of each of four.
TEST(ShareTest, EveryProcessEvaluatesPicturesOfAllClasses) {
  std::multiset<int64_t> seen;
  for (int rank = 0; rank < 3; ++rank) {
    std::set<int64_t> classes;
    for (const int64_t picture : EvaluationPart(12, {/*world_size=*/3, rank})) {
      seen.insert(picture);
      classes.insert(picture / 3);
    }
    EXPECT_EQ(classes.size(), 4u) << rank;
  }
  EXPECT_EQ(seen.size(), 12u);
  EXPECT_EQ(*seen.rbegin(), 11);
  EXPECT_EQ(EvaluationPart(4, {/*world_size=*/3, /*rank=*/0}), (std::vector<int64_t>{0, 3}));
  EXPECT_TRUE(EvaluationPart(1, {/*world_size=*/3, /*rank=*/1}).empty());
}

TEST(ShareTest, RefusesWhatMakesNoSense) {
  const struct {
    JobSize job;
    int node_rank, device;
    const char* words;
  } cases[] = {
      {{0, 1, 8, 0}, 0, 0, "0 nodes"},
      {{1, 0, 8, 0}, 0, 0, "0 devices"},
      {{2, 2, 8, 0}, 2, 0, "node rank 2; expected 0 to 1"},
      {{2, 2, 8, 0}, 0, 2, "device 2; expected 0 to 1"},
      {{2, 2, 8, -1}, 0, 0, "-1 data workers"},
      {{1, 4, 7, 0}, 0, 0, "a batch of 7 on 4 devices"},
  };
  for (const auto& wrong : cases) {
    EXPECT_THAT(ShareOf(wrong.job, wrong.node_rank, wrong.device),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr(wrong.words)));
  }
}

}  // namespace
}  // namespace cadre::imagenet
