#include "worker_runtime/reduce/bucket.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::reduce {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr DataType kF32 = DataType::kFloat32;
constexpr DataType kF64 = DataType::kFloat64;

std::vector<GradientShape> Floats(std::vector<size_t> bytes) {
  std::vector<GradientShape> shapes;
  for (size_t b : bytes) shapes.push_back({b, kF32, -1});
  return shapes;
}

TEST(AssignBuckets, ClosesABucketOnceItHoldsTheLimit) {
  // 400 + 200 stays below 1000; the third gradient takes it over; the next bucket starts empty.
  EXPECT_THAT(AssignBuckets(Floats({400, 200, 900, 400, 600, 1}), {1000}, {0, 1, 2, 3, 4, 5}),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4), ElementsAre(5)));
}

TEST(AssignBuckets, WalksTheLimitsAndStaysOnTheLast) {
  EXPECT_THAT(AssignBuckets(Floats({10, 10, 10, 10, 10, 10}), {10, 20}, {0, 1, 2, 3, 4, 5}),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2), ElementsAre(3, 4), ElementsAre(5)));
}

TEST(AssignBuckets, FollowsTheGivenOrder) {
  EXPECT_THAT(AssignBuckets(Floats({10, 10, 10, 10}), {10, 100}, {2, 0, 3, 1}),
              ElementsAre(ElementsAre(2), ElementsAre(0, 3, 1)));
}

TEST(AssignBuckets, AHugeGradientJoinsWhatIsOpen) {
  EXPECT_THAT(AssignBuckets(Floats({1, 1000000, 1}), {100}, {0, 1, 2}),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
}

TEST(AssignBuckets, SeparatesTypesAndDevicesEachWithItsOwnLimits) {
  const std::vector<GradientShape> shapes = {{10, kF32, -1}, {10, kF64, -1}, {10, kF32, 0},
                                             {10, kF32, -1}, {10, kF64, -1}, {10, kF32, 0}};
  // Each of the three kinds closes its first bucket at 10 bytes; what is left follows by its
  // opening.
  EXPECT_THAT(AssignBuckets(shapes, {10, 100}, {0, 1, 2, 5, 4, 3}),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(5),
                          ElementsAre(4), ElementsAre(3)));
}

TEST(AssignBuckets, WithoutLimitsThereIsOneBucketOfEachKind) {
  const std::vector<GradientShape> shapes = {{1 << 30, kF64, -1}, {8, kF32, -1}, {8, kF64, -1}};
  EXPECT_THAT(AssignBuckets(shapes, {}, {0, 1, 2}), ElementsAre(ElementsAre(0, 2), ElementsAre(1)));
}

TEST(AssignBuckets, ALimitOfZeroPutsEachGradientAlone) {
  EXPECT_THAT(AssignBuckets(Floats({4, 4}), {0}, {0, 1}),
              ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST(AssignBuckets, NothingGivesNothing) { EXPECT_THAT(AssignBuckets({}, {10}, {}), IsEmpty()); }

TEST(ReverseOrder, CountsDown) {
  EXPECT_THAT(ReverseOrder(3), ElementsAre(2, 1, 0));
  EXPECT_THAT(ReverseOrder(0), IsEmpty());
}

}  // namespace
}  // namespace cadre::reduce
