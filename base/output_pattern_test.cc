#include "base/output_pattern.h"

#include "gtest/gtest.h"

namespace cadre {
namespace {

OutputPatternFields Step() { return {"6", "0", "train", "ann", "node2.cluster.org", 1, 3}; }

TEST(OutputPatternTest, StepsAndTasks) {
  EXPECT_EQ(ExpandOutputPattern("s-%j-%J-%s-%t-%4t-%n-%N-%x-%u-%A-%a-%%", Step()),
            "s-6-6.0-0-3-0003-1-node2-train-ann-6-4294967294-%");
}

// Compared with the file that Slurm 22.05 made.
TEST(OutputPatternTest, BatchScripts) {
  const OutputPatternFields script = {"6", "batch", "myname", "root", "vm", 0, 0};
  EXPECT_EQ(ExpandOutputPattern("o-%j-%J-%s-%t-%4t-%n-%N-%x-%u-%A-%a-%%-%5j-%q", script),
            "o-6-6-batch-0-0000-0-vm-myname-root-6-4294967294-%-00006-%q");
}

TEST(OutputPatternTest, ElementsOfArrays) {
  OutputPatternFields element = {"9", "batch", "myname", "root", "vm", 0, 0};
  element.array_id = "7";
  element.array_index = "2";
  EXPECT_EQ(ExpandOutputPattern("slurm-%A_%a.out %4a %j %J", element), "slurm-7_2.out 0002 9 9");
}

TEST(OutputPatternTest, WhatStandsForNothingStays) {
  for (const char* text : {"", "plain", "100%", "%", "%5", "%z", "%5z", "a%-b"}) {
    EXPECT_EQ(ExpandOutputPattern(text, Step()), text);
  }
  EXPECT_EQ(ExpandOutputPattern("%%j", Step()), "%j");
  EXPECT_EQ(ExpandOutputPattern("%99999999999999999999t", Step()), "0000000003");
  EXPECT_EQ(ExpandOutputPattern("a\\%j-%t", Step()), "a%j-%t");
}

TEST(OutputPatternTest, SharedByNodesIfNoFieldDiffers) {
  for (const char* shared : {"slurm-%j.out", "%x-%J", "plain", "%%t", "/dev/null"}) {
    EXPECT_TRUE(IsSharedByNodes(shared)) << shared;
  }
  for (const char* own : {"%t", "a-%4t", "%n/log", "%N"}) EXPECT_FALSE(IsSharedByNodes(own)) << own;
}

}  // namespace
}  // namespace cadre
