#include "worker_runtime/reduce/step_verdict.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/testing/ranks.h"

namespace cadre::reduce {
namespace {

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

TEST(StepVerdict, SaysOnWhichRanksAGradientOfWhatIsNotFinite) {
  const std::vector<Parameter> parameters = {{"weight", {}, {}}, {"new\nline", {}, {}}};
  const struct {
    std::vector<std::optional<size_t>> not_finite;  // by rank
    std::string text;
  } rows[] = {
      {{std::nullopt, std::nullopt}, ""},
      {{std::nullopt, 0}, "a gradient is not finite in step 7: on rank 1 of 'weight'"},
      {{1, std::nullopt, 0},
       "a gradient is not finite in step 7: on rank 0 of 'new\\nline', rank 2 of 'weight'"},
      // As another program's rank might say.
      {{2, std::nullopt}, ""},
  };
  for (const auto& row : rows) {
    StepSummaries summaries;
    for (const auto& one : row.not_finite) summaries.ranks.push_back({one, 7, 0});
    EXPECT_EQ(DescribeNonFinite(summaries, parameters, 7), row.text);
  }
}

TEST(StepVerdict, WhereNobodyDriftedNobodyIsAsked) {
  testing::OnEachRank(sockets::ConnectSockets, 2, [](Communicator& communicator) {
    float value = 1;
    const std::vector<Parameter> parameters = {{"one", {&value, 1}, {1}}};
    // A collective of one rank alone would not be the other's barrier.
    if (communicator.rank() == 0) {
      EXPECT_OK(CheckDrift(communicator, parameters, {}, 7, kLong));
    }
    EXPECT_OK(communicator.Barrier()->Wait(kLong));
  });
}

TEST(StepVerdict, NamesTheParameterThatDriftedWhereItCan) {
  testing::OnEachRank(sockets::ConnectSockets, 3, [](Communicator& communicator) {
    float first = 1, second = communicator.rank() == 2 ? 5 : 4;
    const std::vector<Parameter> parameters = {{"first", {&first, 1}, {1}},
                                               {"second", {&second, 1}, {1}}};
    EXPECT_THAT(CheckDrift(communicator, parameters, {2}, 7, kLong),
                StatusIs(StatusCode::kDataLoss,
                         "the parameters were different before step 7 on rank 2 than on rank 0: "
                         "parameter 'second' differs from rank 0's on rank 2; something changed "
                         "them without the other ranks, or a step went around the reducer"));
    // By now they are the same again.
    second = 4;
    EXPECT_THAT(CheckDrift(communicator, parameters, {1, 2}, 7, kLong),
                StatusIs(StatusCode::kDataLoss,
                         "the parameters were different before step 7 on rank 1, 2 than on rank "
                         "0; something changed them without the other ranks, or a step went around "
                         "the reducer"));
  });
}

}  // namespace
}  // namespace cadre::reduce
