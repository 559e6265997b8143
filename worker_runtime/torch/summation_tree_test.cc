#include "cadre/torch/summation_tree.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::nn {
namespace {

using ::testing::ElementsAre;

void AddInWords(std::string& left, const std::string& right) { left = "(" + left + right + ")"; }

// Returns the additions that this many ranks make, as text.
std::string SumOf(int ranks, int parts) {
  TreeSum<std::string> all(parts);
  for (int rank = 0; rank < ranks; ++rank) {
    TreeSum<std::string> own(parts);
    const PartRange mine = PartsOf(rank, ranks, parts);
    for (int part = mine.begin; part < mine.end; ++part) {
      own.Push({part, part + 1}, std::string(1, static_cast<char>('a' + part)), AddInWords);
    }
    for (const auto& node : own.nodes()) all.Push(node.range, node.value, AddInWords);
  }
  EXPECT_EQ(all.nodes().size(), 1);
  return all.nodes().front().value;
}

TEST(SummationTree, EachNodeHasTwoHalves) {
  EXPECT_EQ(SumOf(1, 1), "a");
  EXPECT_EQ(SumOf(1, 4), "((ab)(cd))");
  EXPECT_EQ(SumOf(1, 5), "((ab)(c(de)))");
}

TEST(SummationTree, TheSameAdditionsAreMadeByAnyNumberOfRanks) {
  for (const int parts : {1, 2, 3, 7, 24}) {
    for (int ranks = 1; ranks <= parts; ++ranks) {
      EXPECT_EQ(SumOf(ranks, parts), SumOf(1, parts)) << ranks << " ranks, " << parts << " parts";
    }
  }
}

TEST(SummationTree, RanksHaveEquallyManyPartsOrOneMore) {
  std::vector<int> sizes;
  for (int rank = 0; rank < 5; ++rank) sizes.push_back(PartsOf(rank, 5, 24).size());
  EXPECT_THAT(sizes, ElementsAre(4, 5, 5, 5, 5));
}

}  // namespace
}  // namespace cadre::nn
