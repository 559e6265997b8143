#include "text.h"

#include <fstream>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/utils.h"

namespace cadre::transformer {
namespace {

using ::testing::HasSubstr;

TEST(Text, ATargetIsWhatComesNext) {
  const auto text = Text::Load("", 16);
  ASSERT_OK(text);
  const Batch batch = text->Sequences(3, 0, 4);
  EXPECT_TRUE(batch.inputs.narrow(1, 1, 15).equal(batch.targets.narrow(1, 0, 15)));
  EXPECT_FALSE(batch.inputs[0].equal(batch.inputs[1]));
}

TEST(Text, SequencesAreTheSameOnAnyNumberOfRanks) {
  const auto text = Text::Load("", 16);
  ASSERT_OK(text);
  const Batch all = text->Sequences(5, 0, 6), half = text->Sequences(5, 3, 3);
  EXPECT_TRUE(all.inputs.narrow(0, 3, 3).equal(half.inputs));
}

TEST(Text, EncodesAndDecodes) {
  const std::string path = ::testing::TempDir() + "/text";
  std::ofstream(path) << "abcab";
  const auto text = Text::Load(path, 4);
  ASSERT_OK(text);
  EXPECT_EQ(text->vocabulary(), 3);
  EXPECT_EQ(text->Decode((*text->Encode("cab"))[0].item<int64_t>()), 'c');
  EXPECT_THAT(text->Encode("bad").status().message(), HasSubstr("byte 3 of \"bad\""));
}

TEST(Text, TooShortOrNotThere) {
  const std::string path = ::testing::TempDir() + "/short";
  std::ofstream(path) << "abcd";
  EXPECT_THAT(Text::Load(path, 4).status().message(), HasSubstr("has 4 bytes; a sequence needs 5"));
  EXPECT_EQ(Text::Load("/no/such", 4).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace cadre::transformer
