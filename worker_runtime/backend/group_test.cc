#include "worker_runtime/backend/group.h"

#include <chrono>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/testing/ranks.h"

namespace cadre::backend {
namespace {

using ::testing::ElementsAre;

// Local rank, local world size, node rank, nodes.
std::vector<int> PlaceIn(const std::vector<int>& nodes, int own) {
  WorkerPlace world;
  world.rank = 7;
  world.world_size = 9;
  world.address = "10.0.0.3";
  const WorkerPlace place = PlaceOfMember(nodes, own, world);
  EXPECT_EQ(place.rank, own);
  EXPECT_EQ(place.world_size, nodes.size());
  EXPECT_EQ(place.address, "10.0.0.3");
  return {place.local_rank, place.local_world_size, place.node_rank, place.nodes};
}

TEST(MemberPlaceTest, OneNode) {
  EXPECT_THAT(PlaceIn({4, 4, 4}, 0), ElementsAre(0, 3, 0, 1));
  EXPECT_THAT(PlaceIn({4, 4, 4}, 2), ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(PlaceIn({4}, 0), ElementsAre(0, 1, 0, 1));
}

TEST(MemberPlaceTest, SeveralNodesAreCountedAnew) {
  EXPECT_THAT(PlaceIn({5, 5, 2, 7}, 1), ElementsAre(1, 2, 0, 3));
  EXPECT_THAT(PlaceIn({5, 5, 2, 7}, 2), ElementsAre(0, 1, 1, 3));
  EXPECT_THAT(PlaceIn({5, 2, 2, 2}, 2), ElementsAre(1, 3, 1, 2));
}

TEST(MemberPlaceTest, RanksOfANodeThatDoNotFollowEachOther) {
  for (int own = 0; own < 4; ++own) {
    EXPECT_THAT(PlaceIn({0, 1, 0, 1}, own), ElementsAre(0, 1, own, 4));
  }
}

constexpr std::chrono::nanoseconds kLong = std::chrono::seconds(30);

TEST(BroadcastBytes, TheRootsAreEverybodys) {
  testing::OnEachRank(shared_memory::ConnectSharedMemory, 3, [](Communicator& communicator) {
    const std::string own = communicator.rank() == 1 ? std::string(1000, 'x') : "other";
    const auto bytes = BroadcastBytes(communicator, own, 1, 1000, kLong);
    ASSERT_OK(bytes);
    EXPECT_EQ(*bytes, std::string(1000, 'x'));
  });
}

TEST(BroadcastBytes, NoneAreBroadcastToo) {
  testing::OnEachRank(shared_memory::ConnectSharedMemory, 2, [](Communicator& communicator) {
    const std::string own = communicator.rank() == 0 ? "" : "other";
    EXPECT_EQ(*BroadcastBytes(communicator, own, 0, 10, kLong), "");
  });
}

TEST(BroadcastBytes, TooManyAreRefusedByAll) {
  testing::OnEachRank(shared_memory::ConnectSharedMemory, 2, [](Communicator& communicator) {
    const auto bytes = BroadcastBytes(communicator, "12345", 0, 4, kLong);
    EXPECT_EQ(bytes.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(bytes.status().message(), ::testing::HasSubstr("at most 4"));
  });
}

}  // namespace

}  // namespace cadre::backend
