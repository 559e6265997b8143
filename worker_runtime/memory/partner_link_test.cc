#include "worker_runtime/memory/partner_link.h"

#include <stdlib.h>
#include <sys/mman.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "base/status_matchers.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/memory/files/memory_slots.h"
#include "worker_runtime/memory/files/slot_file.h"
#include "worker_runtime/wire/connected_pair.h"

namespace cadre::memory {
namespace {

using ::testing::HasSubstr;

// Rank 3 sends to rank 5.
class PartnerLinkTest : public ::testing::Test {
 protected:
  explicit PartnerLinkTest(std::chrono::nanoseconds patience = kPartnerPatience) {
    std::string pattern = ::testing::TempDir() + "/partner_link_XXXXXX";
    EXPECT_NE(mkdtemp(&pattern[0]), nullptr);
    path_ = pattern;
    slots_.emplace(path_, "copy-3", 2);
    auto [of_sender, of_keeper] = wire::ConnectedPair();
    sender_.emplace(std::move(of_sender), 3, 5, patience);
    keeper_.emplace(std::move(of_keeper), 5, 3, patience);
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

// The end of its state cannot be read, so that it is always lost in the midst of sending.
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
  // It gets no further than the announcement, which nobody answers in time.
  EXPECT_FALSE(sender_->Send(Label(1, "state"), "state").ok());
  EXPECT_EQ(keeper_->Receive(*slots_).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(StateOf(1), "none");
}

TEST_F(PartnerLinkTest, AWaitForTheNextStateEndsWithTheLink) {
  std::thread keeper([&] { EXPECT_FALSE(keeper_->Receive(*slots_).ok()); });
  keeper_->Stop();
  keeper.join();
}

}  // namespace
}  // namespace cadre::memory
