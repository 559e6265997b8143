#include "meters.h"

#include "gtest/gtest.h"

namespace cadre::imagenet {
namespace {

TEST(MetersTest, LatestValueAndAverage) {
  AverageMeter time("Time", kSeconds);
  time.Update(0.75);
  time.Update(0.25);
  EXPECT_EQ(time.Text(), "Time  0.250 ( 0.500)");
  AverageMeter accuracy("Acc@1", kPercent);
  accuracy.Update(0, 1);
  accuracy.Update(100, 3);
  EXPECT_EQ(accuracy.Text(), "Acc@1 100.00 ( 75.00)");
  EXPECT_EQ(accuracy.average(), 75);
  AverageMeter loss("Loss", kLoss);
  EXPECT_EQ(loss.Text(), "Loss 0.0000e+00 (0.0000e+00)");
  loss.Update(6.9078);
  EXPECT_EQ(loss.Text(), "Loss 6.9078e+00 (6.9078e+00)");
}

TEST(MetersTest, BatchesHaveOneWidth) {
  EXPECT_EQ(BatchText("Epoch: [0]", 10, 100), "Epoch: [0][ 10/100]");
  EXPECT_EQ(BatchText("Test: ", 2, 2), "Test: [2/2]");
}

}  // namespace
}  // namespace cadre::imagenet
