#include "worker_runtime/environment/rank_places.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::environment {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Makes locations from pairs of local rank and local world size.
std::vector<RankLocation> Told(const std::vector<std::pair<int, int>>& places) {
  std::vector<RankLocation> locations;
  for (const auto& [rank, size] : places) {
    locations.push_back({rank, size, static_cast<int32_t>(places.size()), "m"});
  }
  return locations;
}

std::vector<RankLocation> OnMachines(const std::vector<std::string>& machines) {
  std::vector<RankLocation> locations;
  for (const std::string& machine : machines) {
    locations.push_back({-1, -1, static_cast<int32_t>(machines.size()), machine});
  }
  return locations;
}

void ExpectNodes(const std::vector<RankLocation>& locations, const std::vector<int>& nodes) {
  const auto places = PlaceRanks(locations);
  ASSERT_OK(places);
  ASSERT_EQ(places->size(), nodes.size());
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    size_t first = rank, end = rank;
    while (first > 0 && nodes[first - 1] == nodes[rank]) --first;
    while (end < nodes.size() && nodes[end] == nodes[rank]) ++end;
    const RankPlace& place = (*places)[rank];
    EXPECT_EQ(place.node_rank, nodes[rank]) << rank;
    EXPECT_EQ(place.local_rank, static_cast<int32_t>(rank - first)) << rank;
    EXPECT_EQ(place.local_world_size, static_cast<int32_t>(end - first)) << rank;
    EXPECT_EQ(place.nodes, nodes.back() + 1) << rank;
  }
}

TEST(SeatsTest, NodesOfAnySize) {
  ExpectNodes(Told({{0, 2}, {1, 2}, {0, 1}, {0, 3}, {1, 3}, {2, 3}}), {0, 0, 1, 2, 2, 2});
  ExpectNodes(Told({{0, 1}}), {0});
}

TEST(SeatsTest, TheLaunchersWordCountsAlsoWhereItLeavesOutTheSize) {
  ExpectNodes(Told({{0, -1}, {1, -1}, {0, -1}, {1, -1}}), {0, 0, 1, 1});
}

TEST(SeatsTest, WithoutLocalRanksTheMachinesAreTheNodes) {
  ExpectNodes(OnMachines({"a", "a", "b"}), {0, 0, 1});
  ExpectNodes(OnMachines({"a"}), {0});
}

TEST(SeatsTest, RanksOfANodeFollowEachOther) {
  const std::vector<std::vector<RankLocation>> kSpread = {
      Told({{0, 2}, {0, 2}, {1, 2}, {1, 2}}), Told({{1, 2}, {0, 2}}),
      Told({{0, 2}, {1, 2}, {0, 2}}), Told({{0, -1}, {0, -1}, {1, -1}, {1, -1}}),
      OnMachines({"a", "b", "a", "b"})};
  for (const auto& locations : kSpread) {
    EXPECT_THAT(PlaceRanks(locations),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("--map-by slot"), HasSubstr("cadre run"))));
  }
}

TEST(SeatsTest, RanksThatDoNotAgreeAreNamed) {
  auto locations = Told({{0, 2}, {1, 2}});
  locations[1].world_size = 3;
  EXPECT_THAT(
      PlaceRanks(locations),
      StatusIs(StatusCode::kInvalidArgument,
               "rank 0 was told that there are 2 ranks, rank 1 that there are 3 (WORLD_SIZE)"));
  EXPECT_THAT(PlaceRanks(Told({{-1, -1}, {1, 2}})),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("rank 1 was told its local rank, but not rank 0")));
  EXPECT_THAT(PlaceRanks({}), StatusIs(StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace cadre::environment
