#include "worker_runtime/backend/solo_communicator.h"

#include <chrono>
#include <vector>

#include "base/status_matchers.h"

namespace cadre::backend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

TEST(SoloCommunicatorTest, LeavesTheBufferAsItIs) {
  const auto alone = MakeSoloCommunicator();
  EXPECT_EQ(alone->rank(), 0);
  EXPECT_EQ(alone->size(), 1);
  std::vector<float> values = {1, 2};
  const Buffer buffer{values.data(), values.size(), DataType::kFloat32};
  EXPECT_OK(alone->AllReduce(buffer, ReduceOp::kSum)->Wait(kLong));
  EXPECT_OK(alone->Broadcast(buffer, 0)->Wait(kLong));
  EXPECT_OK(alone->Barrier()->Wait(kLong));
  EXPECT_THAT(values, ElementsAre(1, 2));
}

TEST(SoloCommunicatorTest, GathersItsOwnPart) {
  const auto alone = MakeSoloCommunicator();
  std::vector<int32_t> input = {3, 4}, output(2);
  EXPECT_OK(
      alone->AllGather({input.data(), 2, DataType::kInt32}, {output.data(), 2, DataType::kInt32})
          ->Wait(kLong));
  EXPECT_THAT(output, ElementsAre(3, 4));
}

TEST(SoloCommunicatorTest, RefusesWhatABiggerWorldWouldRefuse) {
  std::vector<float> values(4);
  const Buffer two{values.data(), 2, DataType::kFloat32};
  const Buffer four{values.data(), 4, DataType::kFloat32};
  EXPECT_THAT(MakeSoloCommunicator()->AllGather(two, four)->Wait(kLong),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("2 float32, not 4 float32")));
  EXPECT_THAT(MakeSoloCommunicator()->Broadcast(two, 1)->Wait(kLong),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("ranks are 0 to 0")));
  const Buffer nothing{nullptr, 1, DataType::kFloat32};
  EXPECT_THAT(MakeSoloCommunicator()->AllReduce(nothing, ReduceOp::kSum)->Wait(kLong),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("has a null pointer")));
}

TEST(SoloCommunicatorTest, FailsAfterAbort) {
  const auto alone = MakeSoloCommunicator();
  alone->Abort();
  alone->Abort();
  EXPECT_THAT(alone->Barrier()->Wait(kLong), StatusIs(StatusCode::kAborted));
}

}  // namespace
}  // namespace cadre::backend
