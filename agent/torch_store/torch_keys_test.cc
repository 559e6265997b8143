#include "agent/torch_store/torch_keys.h"

#include <limits>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/torch_protocol.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

const std::string kZero(1, '\0'), kOne(1, '\1');

std::string Number(int64_t number) { return rpc::LittleEndian64(static_cast<uint64_t>(number)); }
std::string Text(const std::string& text) { return Number(text.size()) + text; }

class TorchKeysTest : public ::testing::Test {
 protected:
  absl::Status Do(uint64_t connection, TorchOp op, std::vector<std::string> keys,
                  std::vector<std::string> values = {}, int64_t number = 0) {
    return keys_->Execute(connection, {op, std::move(keys), std::move(values), number});
  }
  // The answer to the operation.
  std::string Ask(uint64_t connection, TorchOp op, std::vector<std::string> keys,
                  std::vector<std::string> values = {}, int64_t number = 0) {
    EXPECT_OK(Do(connection, op, std::move(keys), std::move(values), number));
    return Said(connection);
  }
  // What a connection was answered since the last call.
  std::string Said(uint64_t connection) { return std::exchange(answers_[connection], ""); }
  void TearDown() override {
    keys_.reset();
    EXPECT_EQ(budget_.held(), 0u);
  }

  ByteBudget budget_{1 << 20};
  std::map<uint64_t, std::string> answers_;
  std::unique_ptr<TorchKeys> keys_ = std::make_unique<TorchKeys>(
      &budget_, [this](uint64_t connection, absl::string_view bytes, const SharedText& value) {
        answers_[connection].append(bytes.data(), bytes.size());
        if (value != nullptr) answers_[connection] += value->text();
      });
};

TEST_F(TorchKeysTest, SetGetDelete) {
  EXPECT_EQ(Ask(1, TorchOp::kSet, {"a"}, {"x"}), "");
  EXPECT_EQ(Ask(1, TorchOp::kGet, {"a"}), Text("x"));
  EXPECT_EQ(Ask(1, TorchOp::kSet, {"a"}, {"yy"}), "");
  EXPECT_EQ(Ask(2, TorchOp::kGet, {"a"}), Text("yy"));
  EXPECT_EQ(Ask(1, TorchOp::kGet, {"none"}), Text(""));
  EXPECT_EQ(Ask(1, TorchOp::kGetNumKeys, {}), Number(1));
  EXPECT_EQ(Ask(1, TorchOp::kDeleteKey, {"a"}), Number(1));
  EXPECT_EQ(Ask(1, TorchOp::kDeleteKey, {"a"}), Number(0));
  EXPECT_EQ(Ask(1, TorchOp::kGetNumKeys, {}), Number(0));
}

TEST_F(TorchKeysTest, CompareSet) {
  EXPECT_EQ(Ask(1, TorchOp::kCompareSet, {"a"}, {"other", "x"}), Text("other"));
  EXPECT_EQ(Ask(1, TorchOp::kCheck, {"a"}), kOne);
  EXPECT_EQ(Ask(1, TorchOp::kCompareSet, {"a"}, {"", "x"}), Text("x"));
  EXPECT_EQ(Ask(1, TorchOp::kCompareSet, {"a"}, {"", "y"}), Text("x"));
  EXPECT_EQ(Ask(1, TorchOp::kCompareSet, {"a"}, {"x", "y"}), Text("y"));
  EXPECT_EQ(Ask(1, TorchOp::kGet, {"a"}), Text("y"));
}

TEST_F(TorchKeysTest, AddKeepsDecimalText) {
  EXPECT_EQ(Ask(1, TorchOp::kAdd, {"n"}, {}, 5), Number(5));
  EXPECT_EQ(Ask(2, TorchOp::kAdd, {"n"}, {}, -7), Number(-2));
  EXPECT_EQ(Ask(1, TorchOp::kGet, {"n"}), Text("-2"));
  EXPECT_OK(Do(1, TorchOp::kSet, {"t"}, {"text"}));
  EXPECT_THAT(Do(1, TorchOp::kAdd, {"t"}, {}, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not a number")));
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(Ask(1, TorchOp::kAdd, {"m"}, {}, most), Number(most));
  EXPECT_THAT(Do(1, TorchOp::kAdd, {"m"}, {}, 1), Not(IsOk()));
}

TEST_F(TorchKeysTest, AppendAndMany) {
  EXPECT_OK(Do(1, TorchOp::kAppend, {"a"}, {"x"}));
  EXPECT_OK(Do(1, TorchOp::kAppend, {"a"}, {"yz"}));
  EXPECT_OK(Do(1, TorchOp::kMultiSet, {"b", "c"}, {"1", "2"}));
  EXPECT_EQ(Ask(1, TorchOp::kMultiGet, {"c", "a", "none"}), Text("2") + Text("xyz") + Text(""));
  EXPECT_EQ(Ask(1, TorchOp::kMultiGet, {}), "");
  EXPECT_EQ(Ask(1, TorchOp::kCheck, {"a", "b", "c"}), kZero);
  EXPECT_EQ(Ask(1, TorchOp::kCheck, {"a", "none"}), kOne);
  const std::string list = Ask(1, TorchOp::kListKeys, {});
  EXPECT_EQ(list.substr(0, 8), Number(3));
  for (const char* key : {"a", "b", "c"}) EXPECT_THAT(list, HasSubstr(Text(key)));
}

// A value that is being sent is not changed by later operations.
TEST_F(TorchKeysTest, AppendLeavesWhatIsBeingRead) {
  SharedText reading;
  TorchKeys keys(&budget_,
                 [&](uint64_t, absl::string_view, const SharedText& value) { reading = value; });
  ASSERT_OK(keys.Execute(1, {TorchOp::kSet, {"a"}, {"x"}, 0}));
  ASSERT_OK(keys.Execute(1, {TorchOp::kGet, {"a"}, {}, 0}));
  ASSERT_OK(keys.Execute(1, {TorchOp::kAppend, {"a"}, {"y"}, 0}));
  EXPECT_EQ(reading->text(), "x");
  ASSERT_OK(keys.Execute(1, {TorchOp::kGet, {"a"}, {}, 0}));
  EXPECT_EQ(reading->text(), "xy");
  reading = nullptr;
}

TEST_F(TorchKeysTest, WaitForAllKeys) {
  EXPECT_OK(Do(1, TorchOp::kSet, {"a"}, {"x"}));
  EXPECT_EQ(Ask(1, TorchOp::kWait, {"a"}), kZero);
  EXPECT_EQ(Ask(1, TorchOp::kWait, {}), kZero);
  EXPECT_EQ(Ask(1, TorchOp::kWait, {"a", "b", "c", "b"}), "");
  EXPECT_TRUE(keys_->Waits(1));
  EXPECT_OK(Do(2, TorchOp::kAdd, {"b"}, {}, 1));
  EXPECT_EQ(Said(1), "");
  // The key existed once, which counts even if it has been deleted since.
  EXPECT_OK(Do(2, TorchOp::kDeleteKey, {"b"}));
  EXPECT_OK(Do(2, TorchOp::kCompareSet, {"c"}, {"", "v"}));
  EXPECT_EQ(Said(1), kZero);
  EXPECT_FALSE(keys_->Waits(1));
}

TEST_F(TorchKeysTest, EveryWayToWriteWakes) {
  EXPECT_OK(Do(1, TorchOp::kWait, {"a"}));
  EXPECT_OK(Do(2, TorchOp::kWait, {"b"}));
  EXPECT_OK(Do(3, TorchOp::kWait, {"c"}));
  EXPECT_OK(Do(9, TorchOp::kSet, {"a"}, {""}));
  EXPECT_OK(Do(9, TorchOp::kAppend, {"b"}, {"v"}));
  EXPECT_OK(Do(9, TorchOp::kMultiSet, {"x", "c"}, {"1", "2"}));
  EXPECT_THAT((std::vector<std::string>{Said(1), Said(2), Said(3)}),
              ElementsAre(kZero, kZero, kZero));
}

TEST_F(TorchKeysTest, CancelWait) {
  EXPECT_OK(Do(1, TorchOp::kWait, {"a", "b"}));
  EXPECT_EQ(Ask(1, TorchOp::kCancelWait, {}), kOne);
  EXPECT_OK(Do(2, TorchOp::kMultiSet, {"a", "b"}, {"1", "2"}));
  EXPECT_EQ(Said(1), "");
  // The answer may have come before the cancellation.
  EXPECT_OK(Do(1, TorchOp::kWait, {"c"}));
  EXPECT_OK(Do(2, TorchOp::kSet, {"c"}, {"1"}));
  EXPECT_EQ(Ask(1, TorchOp::kCancelWait, {}), kZero + kOne);
  EXPECT_EQ(keys_->waits(), 0u);
}

TEST_F(TorchKeysTest, WhoWaitsCannotWaitAgain) {
  EXPECT_OK(Do(1, TorchOp::kWait, {"a"}));
  EXPECT_THAT(Do(1, TorchOp::kWait, {"b"}), Not(IsOk()));
  EXPECT_THAT(Do(1, TorchOp::kBarrier, {"b"}, {}, 2), Not(IsOk()));
  keys_->Forget(1);
  keys_->Forget(1);
  EXPECT_OK(Do(2, TorchOp::kSet, {"a"}, {"x"}));
  EXPECT_EQ(Said(1), "");
}

TEST_F(TorchKeysTest, Queues) {
  EXPECT_EQ(Ask(1, TorchOp::kQueuePop, {"q"}), Number(0));
  EXPECT_OK(Do(1, TorchOp::kQueuePush, {"q"}, {"x"}));
  EXPECT_OK(Do(1, TorchOp::kQueuePush, {"q"}, {""}));
  EXPECT_EQ(Ask(1, TorchOp::kQueueLen, {"q"}), Number(2));
  EXPECT_EQ(Ask(1, TorchOp::kCheck, {"q"}), kZero);
  EXPECT_EQ(Ask(1, TorchOp::kGetNumKeys, {}), Number(0));
  EXPECT_EQ(Ask(2, TorchOp::kQueuePop, {"q"}), Number(2) + Text("x"));
  EXPECT_EQ(Ask(2, TorchOp::kQueuePop, {"q"}), Number(1) + Text(""));
  EXPECT_EQ(Ask(2, TorchOp::kQueueLen, {"q"}), Number(0));
  EXPECT_EQ(Ask(1, TorchOp::kCheck, {"q"}), kOne);
  EXPECT_OK(Do(1, TorchOp::kQueuePush, {"left"}, {"x"}));
}

TEST_F(TorchKeysTest, OnePushLetsTheFirstThatWaitsGoOn) {
  EXPECT_OK(Do(1, TorchOp::kWait, {"q"}));
  EXPECT_OK(Do(2, TorchOp::kWait, {"q"}));
  EXPECT_OK(Do(3, TorchOp::kQueuePush, {"q"}, {"x"}));
  EXPECT_EQ(Said(1), kZero);
  EXPECT_EQ(Said(2), "");
  EXPECT_OK(Do(3, TorchOp::kQueuePush, {"q"}, {"y"}));
  EXPECT_EQ(Said(2), kZero);
}

TEST_F(TorchKeysTest, APushCountsForWhoWaitsForAnotherKeyToo) {
  EXPECT_OK(Do(1, TorchOp::kWait, {"q", "a"}));
  EXPECT_OK(Do(2, TorchOp::kWait, {"q"}));
  EXPECT_OK(Do(3, TorchOp::kQueuePush, {"q"}, {"x"}));
  EXPECT_EQ(Said(1), "");
  EXPECT_EQ(Said(2), kZero);
  EXPECT_OK(Do(3, TorchOp::kSet, {"a"}, {"1"}));
  EXPECT_EQ(Said(1), kZero);
  EXPECT_EQ(keys_->waits(), 0u);
}

TEST_F(TorchKeysTest, BarrierOfThree) {
  EXPECT_EQ(Ask(1, TorchOp::kBarrier, {"b"}, {}, 3), "");
  EXPECT_EQ(Ask(2, TorchOp::kBarrier, {"b"}, {}, 3), "");
  // Its count is a key like others; writing that key does not end the barrier.
  EXPECT_EQ(Ask(9, TorchOp::kGet, {"b"}), Text("2"));
  EXPECT_EQ(Said(1), "");
  EXPECT_EQ(Ask(3, TorchOp::kBarrier, {"b"}, {}, 3), kZero);
  EXPECT_EQ(Said(1), kZero);
  EXPECT_EQ(Said(2), kZero);
  EXPECT_EQ(keys_->waits(), 0u);
  EXPECT_EQ(Ask(1, TorchOp::kBarrier, {"alone"}, {}, 1), kZero);
}

TEST_F(TorchKeysTest, BarrierThatIsCancelled) {
  EXPECT_OK(Do(1, TorchOp::kBarrier, {"b"}, {}, 2));
  EXPECT_EQ(Ask(1, TorchOp::kCancelWait, {}), kOne);
  EXPECT_EQ(Ask(2, TorchOp::kBarrier, {"b"}, {}, 2), kZero);
  EXPECT_EQ(Said(1), "");
}

TEST_F(TorchKeysTest, WithoutRoomNothingIsKept) {
  const std::string large(budget_.limit(), 'x');
  for (const TorchOp op : {TorchOp::kSet, TorchOp::kAppend, TorchOp::kQueuePush}) {
    EXPECT_THAT(Do(1, op, {"a"}, {large}),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("holds 1 MiB")));
  }
  std::vector<std::string> keys;
  for (int i = 0; i < 20000; ++i) keys.push_back(std::to_string(i));
  EXPECT_THAT(Do(1, TorchOp::kWait, keys), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_FALSE(keys_->Waits(1));
  EXPECT_EQ(budget_.held(), 0u);
}

TEST_F(TorchKeysTest, ValidateIsNoOperation) {
  EXPECT_THAT(Do(1, TorchOp::kValidate, {}), Not(IsOk()));
  EXPECT_EQ(Ask(1, TorchOp::kPing, {}, {}, 7), rpc::LittleEndian32(7));
}

// For any order of operations, all bytes are returned to the budget, and each call is answered
// once.
TEST_F(TorchKeysTest, AnyOrder) {
  uint64_t random = 1;
  const auto next = [&](uint64_t below) {
    random = random * 6364136223846793005 + 1442695040888963407;
    return (random >> 33) % below;
  };
  for (int i = 0; i < 100000; ++i) {
    const uint64_t connection = 1 + next(5);
    const auto op = static_cast<TorchOp>(1 + next(18));
    std::vector<std::string> keys(1 + next(2), std::string(1, static_cast<char>('a' + next(4))));
    keys.back() = std::string(1, static_cast<char>('a' + next(4)));
    if (op == TorchOp::kCompareSet) keys.resize(1);
    std::vector<std::string> values(2, std::to_string(next(3)));
    if (!Do(connection, op, keys, values, 1 + next(3)).ok() || next(50) == 0) {
      keys_->Forget(connection);
    }
  }
  for (uint64_t connection = 1; connection <= 5; ++connection) keys_->Forget(connection);
  EXPECT_EQ(keys_->waits(), 0u);
}

}  // namespace
}  // namespace cadre::agent
