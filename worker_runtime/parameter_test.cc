#include "cadre/parameter.h"

#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/hierarchical/hierarchical_communicator.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre {
namespace {

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);
// More operations than a communicator queues.
constexpr size_t kMany = 5000;

// Two ranks on different nodes, whose collectives all go through a queue.
void OnTwoNodes(const std::function<void(Communicator&)>& body) {
  testing::InProcessWorkers workers(2, 2);
  workers.Run([&](Worker& worker) {
    auto communicator = hierarchical::ConnectHierarchical(worker, {"parameters", kLong});
    ASSERT_OK(communicator);
    body(**communicator);
  });
}

// Parameters of one element each.
std::vector<Parameter> OneElementEach(std::vector<float>& values) {
  std::vector<Parameter> parameters;
  for (float& value : values) {
    parameters.push_back(
        {"p" + std::to_string(parameters.size()), {&value, 1, DataType::kFloat32}, {}});
  }
  return parameters;
}

TEST(Parameter, AsManyAsTheModelHasAreBroadcast) {
  OnTwoNodes([](Communicator& communicator) {
    std::vector<float> expected(kMany);
    std::iota(expected.begin(), expected.end(), 1.0f);
    std::vector<float> values(kMany);
    if (communicator.rank() == 0) values = expected;
    EXPECT_OK(BroadcastParameters(communicator, OneElementEach(values), kLong));
    EXPECT_TRUE(values == expected);
    // The communicator still works.
    EXPECT_OK(communicator.Barrier()->Wait(kLong));
  });
}

TEST(Parameter, ABroadcastThatFailsEndsWithTheFirstReason) {
  OnTwoNodes([](Communicator& communicator) {
    std::vector<float> values(kMany);
    if (communicator.rank() == 1) {
      communicator.Abort();
      return;
    }
    EXPECT_THAT(BroadcastParameters(communicator, OneElementEach(values), kLong),
                StatusIs(StatusCode::kAborted, ::testing::HasSubstr("rank 1")));
  });
}

}  // namespace
}  // namespace cadre
