#include "worker_runtime/checkpoint/state_index.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Of two ranks, which have a half each.
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
                             HasSubstr("should with 'cadre sharded state '"))));
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
