#include "rendezvous/cluster/node_choice.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::cluster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// Nodes 0, 1, ... of these groups, all alike.
std::vector<NodeCandidate> Nodes(const std::vector<std::string>& groups) {
  std::vector<NodeCandidate> nodes;
  for (size_t i = 0; i < groups.size(); ++i) nodes.push_back({i, groups[i], 0, 0});
  return nodes;
}

TEST(NodeChoiceTest, AllOrNone) {
  EXPECT_THAT(ChooseNodes(Nodes({"", ""}), {}, NodeLayout::kTight, 3), IsEmpty());
  EXPECT_THAT(ChooseNodes(Nodes({"", ""}), {}, NodeLayout::kSpread, 3), IsEmpty());
  EXPECT_THAT(ChooseNodes(Nodes({"", ""}), {}, NodeLayout::kPacked, 3), IsEmpty());
  EXPECT_THAT(ChooseNodes(Nodes({"", ""}), {}, NodeLayout::kTight, 2), ElementsAre(0, 1));
}

TEST(NodeChoiceTest, TheNodesWithLeastLeftOverComeFirstAndGpusAreSpared) {
  const std::vector<NodeCandidate> nodes = {{0, "", 8, 0}, {1, "", 0, 7}, {2, "", 0, 3}};
  EXPECT_THAT(ChooseNodes(nodes, {}, NodeLayout::kTight, 2), ElementsAre(2, 1));
}

TEST(NodeChoiceTest, SpreadsOverGroupsAndCountsWhatIsHeld) {
  EXPECT_THAT(ChooseNodes(Nodes({"a", "a", "a", "b", "c"}), {}, NodeLayout::kSpread, 3),
              UnorderedElementsAre(0, 3, 4));
  EXPECT_THAT(ChooseNodes(Nodes({"a", "a", "a", "b"}), {}, NodeLayout::kSpread, 3),
              UnorderedElementsAre(0, 1, 3));
  EXPECT_THAT(ChooseNodes(Nodes({"a", "a", "b"}), {"a"}, NodeLayout::kSpread, 1), ElementsAre(2));
}

TEST(NodeChoiceTest, PacksIntoTheSmallestGroupThatHoldsAllOfIt) {
  EXPECT_THAT(ChooseNodes(Nodes({"a", "a", "a", "b", "b", "c"}), {}, NodeLayout::kPacked, 2),
              ElementsAre(3, 4));
  // None does: the largest, and for the rest the smallest that does.
  EXPECT_THAT(ChooseNodes(Nodes({"a", "a", "a", "b", "b", "c"}), {}, NodeLayout::kPacked, 4),
              ElementsAre(0, 1, 2, 5));
  EXPECT_THAT(ChooseNodes(Nodes({"a", "a", "a", "c"}), {"c"}, NodeLayout::kPacked, 2),
              ElementsAre(3, 0));
}

}  // namespace
}  // namespace cadre::cluster
