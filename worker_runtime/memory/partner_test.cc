#include "worker_runtime/memory/partner.h"

#include <stdlib.h>
#include <sys/mman.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/memory/files/memory_slots.h"
#include "worker_runtime/wire/connected_pair.h"

namespace cadre::memory {
namespace {

using ::testing::HasSubstr;

// Rank 3 sends to rank 5.
class PartnerLinkTest : public ::testing::Test {
 protected:
  explicit PartnerLinkTest(std::chrono::nanoseconds timeout = kPartnerTimeout) {
    std::string pattern = ::testing::TempDir() + "/partner_link_XXXXXX";
    EXPECT_NE(mkdtemp(&pattern[0]), nullptr);
    path_ = pattern;
    slots_.emplace(path_, "copy-3", 2);
    auto [of_sender, of_keeper] = wire::ConnectedPair();
    sender_.emplace(std::move(of_sender), 3, 5, timeout);
    keeper_.emplace(std::move(of_keeper), 5, 3, timeout);
  }
  ~PartnerLinkTest() override { std::filesystem::remove_all(path_); }

  static constexpr uint64_t kGeneration = 7;
  static SlotLabel Label(int64_t step, const std::string& state) {
    return {step, kGeneration, 8, state.size(), 0};
  }
  std::string StateOf(int64_t step) const {
    const auto saved = slots_->Find(step, kGeneration);
    if (!saved.has_value()) return "none";
    EXPECT_EQ(saved->world_size, 8);
    const auto read = MapState(slots_->Path(saved->slot), saved->bytes);
    EXPECT_OK(read);
    return std::string(read->data() + kStateOffset, saved->bytes);
  }

  std::string path_;
  std::optional<MemorySlots> slots_;
  std::optional<PartnerLink> sender_, keeper_;
};

class HastyPartnerLinkTest : public PartnerLinkTest {
 protected:
  HastyPartnerLinkTest() : PartnerLinkTest(std::chrono::milliseconds(50)) {}
};

TEST_F(PartnerLinkTest, StatesComeWhole) {
  const std::string large(10 << 20, 'l');
  std::thread sender([&] {
    EXPECT_OK(sender_->Send(Label(1, large), large.data()));
    EXPECT_OK(sender_->Send(Label(2, ""), ""));
    EXPECT_OK(sender_->Send(Label(3, "small"), "small"));
  });
  EXPECT_OK(keeper_->Receive(*slots_));
  EXPECT_TRUE(StateOf(1) == large);
  EXPECT_OK(keeper_->Receive(*slots_));
  EXPECT_OK(keeper_->Receive(*slots_));
  sender.join();
  EXPECT_EQ(StateOf(2), "");
  EXPECT_EQ(StateOf(3), "small");
}

TEST_F(PartnerLinkTest, WhatThereIsNoRoomForIsLeftOut_AndTheNextIsTaken) {
  std::thread sender([&] {
    SlotLabel too_large = Label(1, "");
    too_large.bytes = size_t{1} << 60;
    const Status status = sender_->Send(too_large, nullptr);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 5 on the partner node"));
    EXPECT_OK(sender_->Send(Label(2, "small"), "small"));
  });
  EXPECT_OK(keeper_->Receive(*slots_));
  EXPECT_OK(keeper_->Receive(*slots_));
  sender.join();
  EXPECT_EQ(StateOf(1), "none");
  EXPECT_EQ(StateOf(2), "small");
}

// The end of the state's memory is unreadable, so the sender always fails in the midst of sending.
TEST_F(PartnerLinkTest, ASenderThatDiesLeavesNoHalfState) {
  constexpr size_t kBytes = 10 << 20, kReadable = 9 << 20;
  void* const state =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(state, MAP_FAILED);
  ASSERT_EQ(mprotect(static_cast<char*>(state) + kReadable, kBytes - kReadable, PROT_NONE), 0);
  std::thread keeper([&] {
    EXPECT_OK(keeper_->Receive(*slots_));
    EXPECT_EQ(keeper_->Receive(*slots_).code(), StatusCode::kUnavailable);
  });
  EXPECT_OK(sender_->Send(Label(1, "before"), "before"));
  SlotLabel large = Label(2, "");
  large.bytes = kBytes;
  EXPECT_EQ(sender_->Send(large, static_cast<char*>(state)).code(), StatusCode::kUnavailable);
  sender_->Stop();
  keeper.join();
  EXPECT_EQ(StateOf(2), "none");
  EXPECT_EQ(StateOf(1), "before");
  munmap(state, kBytes);
}

TEST_F(HastyPartnerLinkTest, AKeeperThatTakesNothingIsGivenUp) {
  EXPECT_EQ(sender_->Send(Label(1, "state"), "state").code(), StatusCode::kDeadlineExceeded);
}

TEST_F(HastyPartnerLinkTest, ASenderThatStopsInTheMidstOfAStateIsGivenUp) {
  // Only the announcement is sent, because the keeper does not answer it in time.
  EXPECT_FALSE(sender_->Send(Label(1, "state"), "state").ok());
  EXPECT_EQ(keeper_->Receive(*slots_).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(StateOf(1), "none");
}

TEST_F(PartnerLinkTest, AWaitForTheNextStateEndsWithTheLink) {
  std::thread keeper([&] { EXPECT_FALSE(keeper_->Receive(*slots_).ok()); });
  keeper_->Stop();
  keeper.join();
}

// Checks nodes of these sizes: every rank's keeper, and no other rank, must know that it keeps that
// rank's state.
void AllAgree(const std::vector<int>& sizes) {
  const int nodes = static_cast<int>(sizes.size());
  std::vector<WorkerPlace> places;
  for (int node = 0; node < nodes; ++node) {
    for (int local = 0; local < sizes[node]; ++local) {
      WorkerPlace place;
      place.rank = static_cast<int>(places.size());
      place.local_rank = local;
      place.local_world_size = sizes[node];
      place.node_rank = node;
      place.nodes = nodes;
      places.push_back(place);
    }
  }
  std::vector<Neighbours> all;
  for (WorkerPlace& place : places) {
    place.world_size = static_cast<int>(places.size());
    all.push_back(NeighboursOf(place, sizes[(place.node_rank + 1) % nodes],
                               sizes[(place.node_rank + nodes - 1) % nodes]));
  }
  std::vector<int> kept_by(places.size(), -1);
  for (const WorkerPlace& place : places) {
    for (const int rank : all[place.rank].kept) {
      EXPECT_EQ(kept_by[rank], -1) << rank;
      kept_by[rank] = place.rank;
      EXPECT_GE(rank, all[place.rank].first_kept);
      EXPECT_LT(rank, all[place.rank].first_kept + all[place.rank].kept_count);
    }
  }
  for (const WorkerPlace& place : places) {
    const int keeper = all[place.rank].keeper;
    EXPECT_EQ(kept_by[place.rank], keeper);
    EXPECT_EQ(places[keeper].node_rank, (place.node_rank + 1) % nodes);
  }
}

TEST(NeighboursTest, TheNextNodeKeepsANodesStates) {
  AllAgree({1, 1});
  AllAgree({2, 2, 2});
  AllAgree({8, 8});
}

TEST(NeighboursTest, NodesMayDifferInSize) {
  AllAgree({1, 4, 2});
  AllAgree({5, 1});
  AllAgree({2, 7, 3, 1});
}

}  // namespace

}  // namespace cadre::memory
