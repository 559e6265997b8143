#include "worker_runtime/checkpoint/state_index.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/sharded_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// An index of two ranks that have one half each.
StateIndex Halves() {
  StateIndex index;
  index.step = 418;
  index.ranks = 2;
  index.tensors = {{"a name of\nwords", "Float", 4, {2, 3}, 6}, {"scalar", "Long", 8, {}, 1}};
  index.parts = {{0, 100, {{0, 0, 3, 0x12345678, 0}, {1, 0, 1, std::nullopt, 12}}, 20},
                 {1, 90, {{0, 3, 3, 0xabcdef, 0}}, 12}};
  return index;
}

TEST(StateIndexTest, ComesBackAsItWas) {
  const std::string text = EncodeIndex(Halves());
  EXPECT_EQ(*IndexBytes(text.substr(0, kFirstLineBytes)), text.size());
  const Result<StateIndex> index = DecodeIndex(text);
  ASSERT_OK(index);
  EXPECT_EQ(index->step, 418);
  EXPECT_EQ(index->ranks, 2);
  EXPECT_EQ(index->tensors[0].name, "a name of\nwords");
  EXPECT_EQ(index->tensors[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(index->tensors[1].elements, 1);
  ASSERT_EQ(index->parts.size(), 2u);
  EXPECT_EQ(index->parts[0].data_bytes, 20u);
  EXPECT_EQ(index->parts[0].ranges[0].crc32c, 0x12345678u);
  EXPECT_EQ(index->parts[0].ranges[1].crc32c, std::nullopt);
  EXPECT_EQ(index->parts[0].ranges[1].offset, 12u);
  EXPECT_EQ(index->parts[1].head_bytes, 90u);
  EXPECT_EQ(EncodeIndex(*index), text);
  EXPECT_OK(CheckComplete(*index));
}

TEST(StateIndexTest, NoByteOfItCanChange) {
  const std::string text = EncodeIndex(Halves());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 0x11);
    EXPECT_FALSE(DecodeIndex(changed).ok()) << i;
    EXPECT_FALSE(DecodeIndex(text.substr(0, i)).ok()) << i;
  }
}

TEST(StateIndexTest, SomethingElse) {
  EXPECT_THAT(DecodeIndex("PK\x03\x04 what libtorch writes"),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("begins with 'PK\\x03\\x04"),
                             HasSubstr("should begin with 'cadre sharded state '"))));
  EXPECT_THAT(DecodeIndex(""), StatusIs(StatusCode::kInvalidArgument, HasSubstr("''")));
}

TEST(StateIndexTest, ANewerFormat) {
  std::string text = EncodeIndex(Halves());
  text.replace(text.find("state 1"), 7, "state 2");
  EXPECT_THAT(DecodeIndex(text),
              StatusIs(StatusCode::kFailedPrecondition,
                       HasSubstr("of format 2, and this version of Cadre reads format 1")));
}

TEST(StateIndexTest, WhatIsWrongWithALine) {
  const std::string tensors = "step 1\nranks 2\ntensors 1\nFloat 4 6 a\n";
  const struct {
    std::string body;
    const char* error;
  } kCases[] = {
      {"", "line 2 is '', and should be 'step NUMBER'"},
      {"step -1\n", "line 2 is 'step -1'"},
      {"step 1\nranks 99999999999\n", "line 3 is 'ranks 99999999999', and should be 'ranks"},
      {"step 1\nranks 1\ntensors 2\nFloat 4 6 a\n", "line 6 is ''"},
      {"step 1\nranks 1\ntensors 1\nFloat 4 6\n", "line 5 is 'Float 4 6', and should be 'TYPE"},
      {"step 1\nranks 1\ntensors 1\nFloat 0 6 a\n", "line 5"},
      {"step 1\nranks 1\ntensors 1\nFloat 4 6,-1 a\n", "line 5"},
      {"step 1\nranks 1\ntensors 1\nFloat 4 4294967296,4294967296 a\n", "line 5"},
      {"step 1\nranks 1\ntensors 2\nFloat 4 6 a\nFloat 4 6 a\n", "another tensor than"},
      {tensors + "part 2 10 0\n",
       "line 6 is 'part 2 10 0', and should be 'part RANK BYTES RANGES' "
       "of a rank below 2"},
      {tensors + "part 1 10 0\npart 0 10 0\n", "line 7"},
      {tensors + "part 0 10 1\n1 0 6 -\n", "line 7 is '1 0 6 -'"},
      {tensors + "part 0 10 1\n0 0 7 -\n", "should be a range of the 6 elements of 'a'"},
      {tensors + "part 0 10 1\n0 6 1 -\n", "a range of"},
      {tensors + "part 0 10 1\n0 0 0 -\n", "a range of"},
      {tensors + "part 0 10 1\n0 0 6 12\n", "CHECKSUM"},
      {tensors + "part 0 10 2\n0 0 6 -\n", "line 8 is ''"},
  };
  for (const auto& one : kCases) {
    EXPECT_THAT(DecodeIndex(SealIndex(one.body)),
                StatusIs(StatusCode::kDataLoss, HasSubstr(one.error)))
        << one.body;
  }
}

TEST(StateIndexTest, WhatIsNotComplete) {
  StateIndex index = Halves();
  index.parts[1].ranges[0] = {0, 4, 2, std::nullopt, 0};
  EXPECT_THAT(CheckComplete(index),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("element 3 of tensor 'a name")));
  index.parts[1].ranges[0] = {0, 2, 4, std::nullopt, 0};
  EXPECT_THAT(CheckComplete(index), StatusIs(StatusCode::kInvalidArgument,
                                             HasSubstr("in the parts of rank 0 and rank 1")));
  index.parts.pop_back();
  EXPECT_THAT(CheckComplete(index),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("the parts of 1 of 2 ranks")));
}

TEST(StateIndexTest, ElementsOfAShape) {
  EXPECT_EQ(ElementsOf({}), 1);
  EXPECT_EQ(ElementsOf({2, 3}), 6);
  EXPECT_EQ(ElementsOf({int64_t{1} << 60, int64_t{1} << 60, 0}), std::nullopt);
  EXPECT_EQ(ElementsOf({0, int64_t{1} << 62}), 0);
  EXPECT_EQ(ElementsOf({-1}), std::nullopt);
}

}  // namespace

}  // namespace cadre::checkpoint

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

// Returns the bytes that a node's memory would hold.
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
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("3 elements from element 4 on are not in tensor 'a'")));
  EXPECT_THAT(error_of(Range("", values, 0, 6)),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("no name")));
  ShardedRange words = Range("b", values, 0, 6);
  words.tensor.type = "two words";
  EXPECT_THAT(error_of(words), StatusIs(StatusCode::kInvalidArgument, HasSubstr("one word")));
}

}  // namespace

}  // namespace cadre
