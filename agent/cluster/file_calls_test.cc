#include "agent/cluster/file_calls.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kTestTimeout = absl::Seconds(20);
constexpr size_t kMost = 100;

class FileCallsTest : public ::testing::Test {
 protected:
  FileCallsTest() { EXPECT_EQ(pipe2(gate_, O_CLOEXEC), 0); }
  ~FileCallsTest() override {
    Release();
    calls_.Drain();
    close(gate_[0]);
    close(gate_[1]);
  }

  FileCalls::Call Say(const std::string& what) {
    const auto say = [this](const std::string& text) {
      return [this, text] { results_.push_back(text); };
    };
    return {[say, what] { return say(what); }, say(what + " is late"), kTestTimeout};
  }
  // A call that blocks like a file system that does not answer.
  FileCalls::Call Standing() {
    FileCalls::Call call = Say("standing");
    call.work = [fd = gate_[0], then = call.work] {
      char byte = 0;
      EXPECT_EQ(read(fd, &byte, 1), 1);
      return then();
    };
    return call;
  }
  void Release() { EXPECT_EQ(write(gate_[1], "go", 2), 2); }

  void HandleOnceReadable() {
    pollfd ready = {calls_.fd(), POLLIN, 0};
    ASSERT_EQ(poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(kTestTimeout))), 1);
    calls_.Handle(now_);
  }

  int gate_[2] = {-1, -1};
  const MonoTime now_ = MonoNow();
  FileCalls calls_{kMost};
  std::vector<std::string> results_;
};

TEST_F(FileCallsTest, WhatCameOfItIsDoneOnTheLoop) {
  ASSERT_TRUE(calls_.Start("a", Say("done"), now_));
  EXPECT_EQ(calls_.NextDeadline(), now_ + kTestTimeout);
  EXPECT_THAT(results_, IsEmpty());
  HandleOnceReadable();
  EXPECT_THAT(results_, ElementsAre("done"));
  EXPECT_EQ(calls_.NextDeadline(), MonoTime::Never());
}

TEST_F(FileCallsTest, OtherKeysDoNotWait) {
  ASSERT_TRUE(calls_.Start("a", Standing(), now_));
  ASSERT_TRUE(calls_.Start("a", Say("behind it"), now_));
  ASSERT_TRUE(calls_.Start("b", Say("done"), now_));
  HandleOnceReadable();
  EXPECT_THAT(results_, ElementsAre("done"));
}

TEST_F(FileCallsTest, WhatIsLateIsToldOnceAndItsOutcomeIsDropped) {
  ASSERT_TRUE(calls_.Start("a", Standing(), now_));
  calls_.Handle(now_ + kTestTimeout);
  EXPECT_THAT(results_, ElementsAre("standing is late"));
  // Wait until its thread has begun with it.
  while (!calls_.IsHung("a", MonoNow() + kTestTimeout)) {
  }
  EXPECT_FALSE(calls_.IsHung("b", MonoNow() + kTestTimeout));
  Release();
  HandleOnceReadable();
  EXPECT_THAT(results_, ElementsAre("standing is late"));
}

// Fault (queue): A launcher's start waits behind others for the node's file system -> It counts as
// late only if nothing is done for it for 10 s
TEST_F(FileCallsTest, WhoWaitsForItsTurnIsNotLate) {
  ASSERT_TRUE(calls_.Start("a", Say("first"), now_));
  ASSERT_TRUE(calls_.Start("a", Standing(), now_));
  ASSERT_TRUE(calls_.Start("a", Say("last"), now_));
  // The first call was done a moment before the limit.
  const MonoTime later = now_ + kTestTimeout + -absl::Seconds(1);
  pollfd ready = {calls_.fd(), POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(kTestTimeout))), 1);
  calls_.Handle(later);
  EXPECT_EQ(calls_.NextDeadline(), later + kTestTimeout);
  calls_.Handle(now_ + kTestTimeout);
  EXPECT_THAT(results_, ElementsAre("first"));
  // Nothing more completes.
  calls_.Handle(later + kTestTimeout);
  EXPECT_THAT(results_, ElementsAre("first", "standing is late", "last is late"));
}

TEST_F(FileCallsTest, ThereIsABoundForCallsAndForThreads) {
  for (size_t i = 0; i < kMost; ++i) {
    ASSERT_TRUE(calls_.Start("a", i == 0 ? Standing() : Say("a"), now_));
  }
  EXPECT_FALSE(calls_.Start("b", Say("b"), now_));
  calls_.Handle(now_ + kTestTimeout);
  EXPECT_EQ(results_.size(), kMost);
  // A key whose thread is idle is dropped for a new one.
  for (size_t i = 0; i < 2 * kFileThreadsMax; ++i) {
    ASSERT_TRUE(calls_.Start("key " + std::to_string(i), Say("b"), now_)) << i;
    HandleOnceReadable();
  }
}

}  // namespace
}  // namespace cadre::agent
