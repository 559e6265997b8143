// A tensor that is sharded over ranks, for tests of sharded checkpoints.
#ifndef CADRE_WORKER_RUNTIME_CHECKPOINT_SHARDED_STATE_FOR_TEST_H_
#define CADRE_WORKER_RUNTIME_CHECKPOINT_SHARDED_STATE_FOR_TEST_H_

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/sharded_state.h"
#include "gtest/gtest.h"

namespace cadre::testing {

inline constexpr int64_t kElements = 1000;
inline constexpr char kTensor[] = "model.weight";

// The value of an element at a step.
inline float ValueOf(int64_t element, int64_t step) {
  return static_cast<float>(element + 10000 * step);
}

// A rank's share of the tensor, and a text that all ranks have.
class RankValues {
 public:
  RankValues(int rank, int ranks) : rank_(rank), ranks_(ranks) {
    begin_ = kElements * rank / ranks;
    values_.resize(kElements * (rank + 1) / ranks - begin_);
  }

  void Step(int64_t step) {
    for (size_t i = 0; i < values_.size(); ++i) {
      values_[i] = ValueOf(begin_ + static_cast<int64_t>(i), step);
    }
    text_ = "all at " + std::to_string(step);
  }
  ShardedState State() const {
    ShardedState state(rank_, ranks_);
    ShardedRange range{{kTensor, "Float", sizeof(float), {10, kElements / 10}}};
    range.begin = begin_;
    range.count = static_cast<int64_t>(values_.size());
    range.data = values_.data();
    state.Add(range);
    const auto size = static_cast<int64_t>(text_.size());
    state.Add({{"text", "Byte", 1, {size}}, 0, size, text_.data(), /*elsewhere=*/rank_ != 0});
    return state;
  }
  // Expects that this rank's share and the text are those of the saved step.
  void ExpectSaved(const SavedShards& saved) const {
    std::vector<float> values(values_.size());
    const auto count = static_cast<int64_t>(values.size());
    ASSERT_OK(saved.Read(kTensor, begin_, count, values.data()));
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(values[i], ValueOf(begin_ + i, saved.step())) << begin_ + i;
    }
    ASSERT_NE(saved.Find("text"), nullptr);
    std::string text(static_cast<size_t>(saved.Find("text")->shape[0]), ' ');
    ASSERT_OK(saved.Read("text", 0, saved.Find("text")->shape[0], &text[0]));
    EXPECT_EQ(text, "all at " + std::to_string(saved.step()));
  }

 private:
  const int rank_;
  const int ranks_;
  int64_t begin_;
  std::vector<float> values_;
  std::string text_;
};

class ShardsTest : public ::testing::Test {
 protected:
  static constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

  ShardsTest() {
    std::string pattern = ::testing::TempDir() + "/shards_XXXXXX";
    EXPECT_NE(mkdtemp(&pattern[0]), nullptr);
    path_ = pattern;
  }
  ~ShardsTest() override { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  // Returns the names in the directory: of checkpoints that are, or were, complete.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::string path_;
};

}  // namespace cadre::testing

#endif  // CADRE_WORKER_RUNTIME_CHECKPOINT_SHARDED_STATE_FOR_TEST_H_
