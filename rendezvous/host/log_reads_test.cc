#include "rendezvous/host/log_reads.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::host {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

MonoTime Second(int s) { return MonoTime::FromMicros(s * int64_t{1000000}); }

class LogReadsTest : public testing::Test {
 protected:
  uint64_t Add(uint64_t stream, int second, bool ended = false) {
    return *reads_.Add(
        StreamId{stream}, ended, Second(second), [this](absl::StatusOr<v1::ReadLogReply> got) {
          answers_.push_back(got.ok() ? got->bytes()
                                      : absl::StatusCodeToString(got.status().code()));
        });
  }
  void Answer(uint64_t call, const std::string& bytes, int code = 0, uint64_t stream = 1) {
    v1::LogChunk chunk;
    chunk.set_call(call);
    chunk.set_bytes(bytes);
    chunk.set_code(code);
    reads_.Take(StreamId{stream}, chunk);
  }

  LogReads reads_;
  std::vector<std::string> answers_;
};

TEST_F(LogReadsTest, EachIsAnsweredOnce) {
  const uint64_t first = Add(1, 0), second = Add(1, 0);
  Answer(second, "two");
  Answer(first, "", static_cast<int>(absl::StatusCode::kNotFound));
  Answer(first, "again");
  EXPECT_THAT(answers_, ElementsAre("two", "NOT_FOUND"));
  EXPECT_EQ(reads_.NextDeadline(), MonoTime::Never());
}

TEST_F(LogReadsTest, OnlyTheAgentThatWasAskedAnswers) {
  const uint64_t call = Add(1, 0);
  Answer(call, "forged", 0, 2);
  Answer(call, "", static_cast<int>(absl::StatusCode::kNotFound), 2);
  EXPECT_THAT(answers_, IsEmpty());
  Answer(call, "true");
  EXPECT_THAT(answers_, ElementsAre("true"));
}

TEST_F(LogReadsTest, WhatIsNotThereWhenAllHasEndedWillNotCome) {
  constexpr int kNotFound = static_cast<int>(absl::StatusCode::kNotFound);
  Answer(Add(1, 0), "", kNotFound);
  Answer(Add(1, 0, /*ended=*/true), "", kNotFound);
  EXPECT_THAT(answers_, ElementsAre("NOT_FOUND", "FAILED_PRECONDITION"));
}

TEST_F(LogReadsTest, NobodyWaitsForAnAgentThatIsGoneOrSilent) {
  Add(1, 0);
  Add(2, 5);
  Add(3, 6);
  EXPECT_EQ(reads_.NextDeadline(), Second(0) + kLogReadTimeout);
  reads_.Expire(Second(1) + kLogReadTimeout);
  reads_.EndOfStream(StreamId{2});
  EXPECT_THAT(answers_, ElementsAre("DEADLINE_EXCEEDED", "UNAVAILABLE"));
  reads_.EndAll(absl::CancelledError());
  EXPECT_THAT(answers_, ElementsAre("DEADLINE_EXCEEDED", "UNAVAILABLE", "CANCELLED"));
}

TEST_F(LogReadsTest, OneUsersReadsLeaveOthersTheirPlaces) {
  const auto done = [](const absl::StatusOr<v1::ReadLogReply>&) {};
  const auto add = [&](const std::string& owner) {
    return reads_.Add(StreamId{1}, false, Second(0), done, owner).status();
  };
  for (size_t i = 0; i < kLogReadsOfUserMax; ++i) EXPECT_OK(add("ann"));
  EXPECT_EQ(add("ann").message(),
            "user ann has 64 logs that are being read, which is the limit (logs of a user); try "
            "again when some have been");
  EXPECT_OK(add("bob"));
}

TEST_F(LogReadsTest, TheirNumberIsBounded) {
  for (size_t i = 0; i < kLogReadsMax; ++i) Add(1, 0);
  EXPECT_THAT(reads_.Add(StreamId{1}, false, Second(0), nullptr),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace cadre::host
