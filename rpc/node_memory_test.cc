#include "rpc/node_memory.h"

#include "gtest/gtest.h"

namespace cadre::rpc {
namespace {

TEST(NodeMemoryTest, AJobHasThatOfItsWorkersAndOfItsLauncher) {
  EXPECT_EQ(JobMemory(uint64_t{8} << 30, 2), uint64_t{17} << 30);
  EXPECT_EQ(JobMemory(0, 2), 0u) << "it did not say how much";
}

TEST(NodeMemoryTest, WhatNoMachineHasDoesNotOverflow) {
  EXPECT_EQ(JobMemory(UINT64_MAX, 1), uint64_t{INT64_MAX});
  EXPECT_EQ(JobMemory(uint64_t{1} << 62, 4), uint64_t{INT64_MAX});
  EXPECT_EQ(JobMemory(INT64_MAX - kLauncherMemory, 1), uint64_t{INT64_MAX});
}

}  // namespace
}  // namespace cadre::rpc
