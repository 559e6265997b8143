#include "job_flags.h"

#include <cstdlib>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::imagenet {
namespace {

using ::testing::HasSubstr;

// The second process of the second of two nodes.
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
  // Where the template's processes would meet.
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
}

}  // namespace
}  // namespace cadre::imagenet
