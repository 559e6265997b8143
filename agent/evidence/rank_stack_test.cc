#include "agent/evidence/rank_stack.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::HasSubstr;

constexpr char kDump[] =
    "Thread 0x00007f01 (most recent call first):\n"
    "  File \"/usr/lib/python3.11/threading.py\", line 324 in wait\n"
    "  ...\n"
    "\n"
    "Current thread 0x00007f02 (most recent call first):\n"
    "  File \"/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py\", line 9 in "
    "all_reduce\n"
    "  File \"/home/me/train.py\", line 40 in main\n"
    "  File \"/home/me/train.py\", line 44 in <module>\n";

std::string Source(const std::string& file, int line) { return absl::StrCat(file, "#", line); }

TEST(RankStack, HasTheMainThreadsFramesAndTheSourceOfTheUsersOwn) {
  v1::RankStack stack;
  AddFrames(kDump, Source, &stack);
  ASSERT_EQ(stack.frames_size(), 3);
  EXPECT_EQ(stack.frames(0).function(), "all_reduce");
  EXPECT_EQ(stack.frames(0).line(), 9u);
  EXPECT_FALSE(stack.frames(0).own());
  EXPECT_EQ(stack.frames(0).source(), "");
  EXPECT_EQ(stack.frames(1).file(), "/home/me/train.py");
  EXPECT_TRUE(stack.frames(1).own());
  EXPECT_EQ(stack.frames(1).source(), "/home/me/train.py#40");
  EXPECT_FALSE(stack.cut());  // another thread's was
}

TEST(RankStack, SaysThatTheInterpreterLeftOutCalls) {
  v1::RankStack stack;
  AddFrames(absl::StrCat(kDump, "  ...\n"), Source, &stack);
  EXPECT_TRUE(stack.cut());
}

TEST(RankStack, IsBounded) {
  std::string dump = "Current thread 0x1 (most recent call first):\n";
  for (int i = 0; i < 120; ++i) {
    absl::StrAppend(&dump, "  File \"/home/me/", std::string(1000, 'x'), "\", line 1 in f\xff\n");
  }
  v1::RankStack stack;
  AddFrames(dump, Source, &stack);
  EXPECT_EQ(stack.frames_size(), static_cast<int>(kMaxStackFrames));
  EXPECT_TRUE(stack.cut());
  EXPECT_EQ(stack.frames(0).file().size(), kMaxFrameNameBytes);
  EXPECT_EQ(stack.frames(0).function(), "f\xef\xbf\xbd");
  EXPECT_NE(stack.frames(kMaxSourceLines - 1).source(), "");
  EXPECT_EQ(stack.frames(kMaxSourceLines).source(), "");
}

TEST(RankStack, AnAnswerIsBounded) {
  std::vector<v1::RankStack> ranks(5);
  for (v1::RankStack& rank : ranks) rank.set_text(std::string(kMaxNodeStackBytes / 3, 'x'));
  ranks[3].add_frames();
  const v1::NodeStacks answer = AnswerOf(ranks);
  ASSERT_EQ(answer.ranks_size(), 5);
  EXPECT_LT(answer.ByteSizeLong(), kMaxNodeStackBytes + (4 << 10));
  EXPECT_EQ(answer.ranks(1).no_python(), "");
  EXPECT_EQ(answer.ranks(3).frames_size(), 0);
  EXPECT_EQ(answer.ranks(3).text(), "");
  EXPECT_THAT(answer.ranks(3).no_python(), HasSubstr("left out"));
}

}  // namespace
}  // namespace cadre::agent
