#include "announcement.h"

#include "gtest/gtest.h"

namespace cadre::cifar {
namespace {

TEST(AnnouncementTest, SaysWhatStandsForAGpu) {
  EXPECT_EQ(TrainingLine(4, 2, /*on_gpus=*/true), ">>> Training on 4 GPUs of 2 nodes");
  EXPECT_EQ(TrainingLine(2, 1, /*on_gpus=*/false),
            ">>> Training on 2 GPUs of 1 nodes (--device cpu: a process on the CPU for each)");
}

TEST(AnnouncementTest, NamesProcessesAndCheckpoints) {
  EXPECT_EQ(ProcessLine(3, 1, 2), "- Process 3 corresponds to GPU 1 of node 2");
  EXPECT_EQ(EpochCheckpointName(4, 2), "4GPU_2epoch.checkpoint");
}

}  // namespace
}  // namespace cadre::cifar
