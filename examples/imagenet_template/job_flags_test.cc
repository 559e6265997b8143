#include "job_flags.h"

#include <cstdlib>
#include <set>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "share.h"

namespace cadre::imagenet {
namespace {

using ::testing::HasSubstr;

// Returns the place of the second process of the second of two nodes.
WorkerPlace Place() {
  WorkerPlace place;
  place.rank = 3;
  place.world_size = 4;
  place.local_rank = 1;
  place.local_world_size = 2;
  place.node_rank = 1;
  place.nodes = 2;
  return place;
}

TEST(JobFlagsTest, WhatAgreesIsTaken) {
  EXPECT_OK(CheckJobFlags({}, Place()));
  JobFlags flags;
  flags.nodes = 2;
  flags.node_rank = 1;
  flags.gpu = 1;
  EXPECT_OK(CheckJobFlags(flags, Place()));
  // These are addresses at which the template's processes would meet.
  for (const char* url : {"tcp://127.0.0.1:23456", "tcp://[::1]:1", "file:///shared/meeting"}) {
    flags.dist_url = url;
    EXPECT_OK(CheckJobFlags(flags, Place()));
  }
  WorkerPlace alone;
  JobFlags third;
  third.gpu = 2;
  EXPECT_OK(CheckJobFlags(third, alone));
}

TEST(JobFlagsTest, WhatContradictsIsRefused) {
  const auto refused = [](void (*change)(JobFlags&)) {
    JobFlags flags;
    change(flags);
    const Status status = CheckJobFlags(flags, Place());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused([](JobFlags& flags) { flags.nodes = 4; }),
              HasSubstr("--world-size 4 is given in nodes, and the job has 2;"));
  EXPECT_THAT(refused([](JobFlags& flags) { flags.node_rank = 0; }),
              HasSubstr("--rank 0 is that of a node, and this is node 1;"));
  EXPECT_THAT(refused([](JobFlags& flags) { flags.gpu = 0; }),
              HasSubstr("--gpu 0: this node has 2 processes, and this one has GPU 1;"));
  EXPECT_THAT(
      refused([](JobFlags& flags) { flags.dist_url = "node0:23456"; }),
      HasSubstr("--dist-url node0:23456: expected env://, tcp://HOST:PORT or file:///PATH"));
}

TEST(JobFlagsTest, ALauncherIsKnownByItsVariables) {
  for (const char* name : {"CADRE_AGENT", "CADRE_STANDS_BY", "RANK", "OMPI_COMM_WORLD_RANK",
                           "SLURM_PROCID", "SLURM_NTASKS"}) {
    unsetenv(name);
  }
  EXPECT_FALSE(HasLauncher());
  setenv("SLURM_PROCID", "0", 1);
  setenv("SLURM_NTASKS", "1", 1);
  EXPECT_FALSE(HasLauncher());
  setenv("SLURM_NTASKS", "2", 1);
  EXPECT_TRUE(HasLauncher());
  unsetenv("SLURM_PROCID");
  setenv("RANK", "0", 1);
  EXPECT_TRUE(HasLauncher());
  unsetenv("RANK");
  unsetenv("SLURM_NTASKS");
}

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

// The pictures are sorted by class, as in folders: three of each of four classes.
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
