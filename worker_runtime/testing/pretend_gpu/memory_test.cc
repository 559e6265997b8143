#include "worker_runtime/testing/pretend_gpu/memory.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/status_matchers.h"

namespace cadre::pretend_gpu {
namespace {

using ::testing::HasSubstr;

constexpr size_t kBytes = 64;

// Each test uses its own memory and streams. They live as long as the process, as reported mistakes
// do, so a test that makes a mistake runs in its own process.
Stream& NewStream() { return *new Stream(0, ""); }

void Touch(const void* memory, size_t bytes, bool writes, Stream& stream) {
  NoteUse({memory, bytes, writes}, stream, stream.Push([] {}), "a job", nullptr);
}

// Ends the process after printing the first mistake, or "nothing".
void Say() {
  std::fprintf(stderr, "found: %s\n", HasMistake() ? FirstMistake().c_str() : "nothing");
  _Exit(0);
}

TEST(MemoryTest, IsWhatItWasAskedFor) {
  void* const memory = AllocateOnDevice(1, kBytes);
  ASSERT_NE(memory, nullptr);
  EXPECT_TRUE(IsOnDevice(memory));
  EXPECT_EQ(WhyNotOnDevice(memory, kBytes, 1), "");
  EXPECT_EQ(WhyNotOnDevice(memory, kBytes, -1), "");
  EXPECT_THAT(WhyNotOnDevice(memory, kBytes, 0), HasSubstr("lies on GPU 1, not on GPU 0"));
  EXPECT_THAT(WhyNotOnDevice(static_cast<char*>(memory) + 1, kBytes, 1), HasSubstr("1 bytes too"));
  EXPECT_THAT(WhyNotOnDevice(&kBytes, 1, 1), HasSubstr("not memory of a GPU"));
  float fresh = 0;
  memcpy(&fresh, AsDeviceSeesIt(memory), sizeof(fresh));
  EXPECT_TRUE(std::isnan(fresh));
  EXPECT_TRUE(FreeOnDevice(memory));
  EXPECT_FALSE(FreeOnDevice(memory));
  EXPECT_THAT(WhyNotOnDevice(memory, 1, 1), HasSubstr("was freed"));
  EXPECT_EQ(AllocateOnDevice(0, size_t{1} << 50), nullptr);
}

TEST(MemoryTest, PinnedMemoryIsKnown) {
  char* const memory = static_cast<char*>(AllocatePinned(kBytes));
  EXPECT_TRUE(IsPinned(memory + kBytes - 1));
  EXPECT_FALSE(IsPinned(memory + kBytes));
  EXPECT_TRUE(FreePinned(memory));
  EXPECT_FALSE(FreePinned(memory));
  EXPECT_FALSE(IsPinned(memory));
}

TEST(MemoryDeathTest, ReadsMayMeetAndSoMayDisjointWrites) {
  const auto body = [] {
    char* const memory = static_cast<char*>(AllocateOnDevice(0, kBytes));
    Stream &one = NewStream(), &other = NewStream();
    Touch(memory, 8, true, one);
    Touch(memory + 8, 8, true, other);
    Touch(memory + 16, 8, false, one);
    Touch(memory + 16, 8, false, other);
    Say();
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(0), "found: nothing");
}

TEST(MemoryDeathTest, WhatIsNotOrderedIsFound) {
  const auto body = [] {
    void* const memory = AllocateOnDevice(0, kBytes);
    Stream &one = NewStream(), &other = NewStream();
    Touch(memory, 8, false, one);
    Touch(memory, 4, true, other);
    Say();
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(0),
              "writes memory that a job on .* reads, and nothing makes it");
}

TEST(MemoryDeathTest, AnEventOrdersAndSoDoesWhatTheHostHasSeen) {
  const auto body = [] {
    void* const memory = AllocateOnDevice(0, kBytes);
    Stream &one = NewStream(), &other = NewStream(), &third = NewStream();
    Touch(memory, 8, true, one);
    Event event(0);
    event.Record(one);
    event.MakeWait(other);
    Touch(memory, 8, true, other);
    // The event of the other stream orders them.
    Event second(0);
    second.Record(other);
    second.Wait();
    Touch(memory, 8, true, third);
    Say();
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(0), "found: nothing");
}

TEST(MemoryDeathTest, AnEventOrdersOnlyWhatCameBefore) {
  const auto body = [] {
    void* const memory = AllocateOnDevice(0, kBytes);
    Stream &one = NewStream(), &other = NewStream();
    Event event(0);
    event.Record(one);
    Touch(memory, 8, true, one);
    event.MakeWait(other);
    Touch(memory, 8, false, other);
    Say();
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(0), "reads memory that a job on .* writes");
}

}  // namespace
}  // namespace cadre::pretend_gpu
