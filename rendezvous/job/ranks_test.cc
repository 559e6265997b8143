#include "rendezvous/job/ranks.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace cadre::job {
namespace {

std::string Order(const RankAssignment& assignment) {
  std::string text;
  for (const saved::Member& member : assignment.members) {
    absl::StrAppend(&text, text.empty() ? "" : " ", member.node(), "@", member.first_rank());
  }
  return text;
}

RankCandidate Node(const std::string& name, uint64_t admission, uint32_t slots = 1,
                   int32_t wanted = -1) {
  return {name, name, slots, wanted, admission};
}

TEST(RanksTest, NumbersInNamesCompareAsNumbers) {
  EXPECT_LT(CompareNaturally("n2", "n10"), 0);
  EXPECT_GT(CompareNaturally("n10", "n9"), 0);
  EXPECT_EQ(CompareNaturally("n01", "n1"), 0);
  EXPECT_LT(CompareNaturally("n", "n1"), 0);
  EXPECT_LT(CompareNaturally("rack1-n9", "rack2-n1"), 0);
  EXPECT_LT(CompareNaturally("n99999999999999999998", "n99999999999999999999"), 0);
}

TEST(RanksTest, RanksAreContiguousPerNode) {
  EXPECT_EQ(Order(AssignRanks({Node("n10", 1, 3), Node("n2", 2, 8), Node("n1", 3, 1)}, {})),
            "n1@0 n2@1 n10@9");
}

TEST(RanksTest, TheHostDecidesBeforeTheNodeName) {
  RankCandidate a = Node("a", 1), b = Node("b", 2);
  a.host = "h2";
  b.host = "h1";
  EXPECT_EQ(Order(AssignRanks({a, b}, {})), "b@0 a@1");
}

TEST(RanksTest, WhoStaysKeepsItsRankAndNewcomersFillHoles) {
  EXPECT_EQ(Order(AssignRanks({Node("a", 9), Node("c", 1), Node("d", 2)}, {"c", "", "d"})),
            "c@0 a@1 d@2");
  // d's old rank no longer exists.
  EXPECT_EQ(Order(AssignRanks({Node("d", 2), Node("b", 1)}, {"a", "b", "c", "d"})), "d@0 b@1");
}

TEST(RanksTest, WishesComeFirstAndTheEarlierOfTwo) {
  const RankAssignment assignment = AssignRanks(
      {Node("a", 3, 1, 1), Node("b", 2, 1, 1), Node("c", 1), Node("d", 4, 1, 7)}, {"b", "c"});
  EXPECT_EQ(Order(assignment), "a@0 b@1 c@2 d@3");
  ASSERT_EQ(assignment.notes.size(), 2u);
  EXPECT_EQ(assignment.notes[0], "node a asked for node rank 1, which node b asked for first");
  EXPECT_EQ(assignment.notes[1], "node d asked for node rank 7, but there are only 4 nodes");
}

}  // namespace
}  // namespace cadre::job
