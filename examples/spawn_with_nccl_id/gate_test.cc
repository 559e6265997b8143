#include "gate.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kTimeout(20);
constexpr char kId[] = "the id";

std::unique_ptr<Gate> Open(int ranks) {
  Result<Gate> gate = Gate::Open(kId, ranks);
  EXPECT_OK(gate);
  return std::make_unique<Gate>(*std::move(gate));
}

Status Answer(Gate& gate) { return gate.AnswerOne(Clock::now() + kTimeout); }

// Connects to the gate and keeps the answer that it gets in the end.
class Caller {
 public:
  Caller(const Gate& gate, std::string id, int rank)
      : thread_([this, path = gate.path(), id, rank] {
          status_ = EnterGate(path, id, rank, kTimeout);
        }) {}
  ~Caller() {
    if (thread_.joinable()) thread_.join();
  }
  Status Told() {
    thread_.join();
    return status_;
  }

 private:
  Status status_;
  std::thread thread_;
};

TEST(GateTest, LetsHoldersIn) {
  auto gate = Open(2);
  Caller one(*gate, kId, 1);
  ASSERT_OK(Answer(*gate));
  EXPECT_FALSE(gate->AllAreIn());
  Caller zero(*gate, kId, 0);
  ASSERT_OK(Answer(*gate));
  EXPECT_TRUE(gate->AllAreIn());
  ASSERT_OK(gate->Welcome());
  EXPECT_OK(one.Told());
  EXPECT_OK(zero.Told());
}

TEST(GateTest, SendsOthersAway) {
  auto gate = Open(2);
  Caller holder(*gate, kId, 0);
  ASSERT_OK(Answer(*gate));
  const struct {
    std::string id;
    int rank;
    std::string words;
  } cases[] = {
      {"not it", 1, "does not hold the id"}, {"the i", 1, "does not hold the id"},
      {"", 1, "does not hold the id"},       {"the id, and more", 1, "does not hold the id"},
      {kId, 0, "rank 0 is here already"},    {kId, 2, "there is no rank 2"},
      {kId, -1, "there is no rank -1"},
  };
  for (const auto& other : cases) {
    Caller caller(*gate, other.id, other.rank);
    EXPECT_THAT(Answer(*gate), StatusIs(StatusCode::kPermissionDenied, HasSubstr(other.words)));
    EXPECT_THAT(caller.Told(), StatusIs(StatusCode::kPermissionDenied, HasSubstr(other.words)));
  }
  EXPECT_FALSE(gate->AllAreIn());
  gate.reset();
  EXPECT_THAT(holder.Told(),
              StatusIs(StatusCode::kUnavailable, HasSubstr("before all ranks had come in")));
}

TEST(GateTest, NamesWhoHasNotCome) {
  auto gate = Open(3);
  Caller holder(*gate, kId, 1);
  ASSERT_OK(Answer(*gate));
  EXPECT_THAT(gate->AnswerOne(Clock::now()),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("in time: 0, 2")));
  gate.reset();
}

}  // namespace
}  // namespace cadre
