#include "cadre/sharded_state.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ShardedRange Range(const std::string& name, const std::vector<int16_t>& values, int64_t begin,
                   int64_t elements) {
  ShardedRange range{{name, "Short", sizeof(int16_t), {elements}}};
  range.begin = begin;
  range.count = static_cast<int64_t>(values.size());
  range.data = values.data();
  return range;
}

// As a node's memory would have it.
std::string BytesOf(ShardedState& state, int64_t step) {
  const auto parts = state.Parts(step);
  EXPECT_OK(parts);
  std::string bytes;
  for (const StatePart& part : *parts) bytes.append(static_cast<const char*>(part.data), part.size);
  return bytes;
}

TEST(ShardedStateTest, ComesBackFromMemory) {
  const std::vector<int16_t> first = {1, 2, 3}, second = {7, 8}, more = {4};
  ShardedState state(1, 3);
  state.Add(Range("a", first, 10, 20));
  state.Add(Range("b", second, 0, 2));
  state.Add(Range("a", more, 13, 20));
  state.Add(Range("none", {}, 0, 0));
  EXPECT_EQ(state.bytes(), 12u);
  const std::string bytes = BytesOf(state, 5);
  const Result<SavedShards> saved = SavedShards::FromMemory(bytes);
  ASSERT_OK(saved);
  EXPECT_EQ(saved->step(), 5);
  EXPECT_EQ(saved->ranks(), 3);
  EXPECT_TRUE(saved->in_memory());
  EXPECT_EQ(saved->names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(saved->Find("a")->shape, (std::vector<int64_t>{20}));
  EXPECT_EQ(saved->Find("none"), nullptr);
  std::vector<int16_t> read(4);
  ASSERT_OK(saved->Read("a", 10, 4, read.data()));
  EXPECT_EQ(read, (std::vector<int16_t>{1, 2, 3, 4}));
  read.assign(2, 0);
  ASSERT_OK(saved->Read("a", 12, 2, read.data()));
  EXPECT_EQ(read, (std::vector<int16_t>{3, 4}));
  EXPECT_OK(saved->Check(1));
}

TEST(ShardedStateTest, WhatIsNotThere) {
  const std::vector<int16_t> values = {1, 2, 3};
  ShardedState state(0, 2);
  state.Add(Range("a", values, 0, 6));
  const std::string bytes = BytesOf(state, 1);
  const Result<SavedShards> saved = SavedShards::FromMemory(bytes);
  ASSERT_OK(saved);
  std::vector<int16_t> read(4);
  EXPECT_THAT(saved->Read("a", 2, 2, read.data()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("element 3 of tensor 'a'")));
  EXPECT_THAT(saved->Read("b", 0, 1, read.data()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'b'")));
}

TEST(ShardedStateTest, BytesOfSomethingElse) {
  const std::vector<int16_t> values = {1, 2, 3};
  ShardedState state(0, 2);
  state.Add(Range("a", values, 0, 6));
  const std::string bytes = BytesOf(state, 1);
  for (const size_t size : {size_t{0}, size_t{20}, bytes.size() - 7, bytes.size() - 1}) {
    EXPECT_THAT(SavedShards::FromMemory({bytes.data(), size}),
                StatusIs(StatusCode::kDataLoss, HasSubstr("is no sharded state")))
        << size;
  }
}

TEST(ShardedStateTest, RangesThatContradictEachOther) {
  const std::vector<int16_t> values = {1, 2, 3};
  const auto error_of = [&](const ShardedRange& second) {
    ShardedState state(0, 1);
    state.Add(Range("a", values, 0, 6));
    state.Add(second);
    return state.Parts(1).status();
  };
  EXPECT_THAT(error_of(Range("a", values, 3, 7)),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("tensor 'a' is Short [7]"), HasSubstr("Short [6]"))));
  EXPECT_THAT(error_of(Range("a", values, 4, 6)),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("has no 3 from 4 on")));
  EXPECT_THAT(error_of(Range("", values, 0, 6)),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("no name")));
  ShardedRange words = Range("b", values, 0, 6);
  words.tensor.type = "two words";
  EXPECT_THAT(error_of(words), StatusIs(StatusCode::kInvalidArgument, HasSubstr("one word")));
}

}  // namespace
}  // namespace cadre
