#include "rendezvous/host/agent_requests.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
    reads_.OnChunk(StreamId{stream}, chunk);
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

// Fault (access): An agent answers a request for a log that another agent was asked for -> The
// answer is dropped
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
  reads_.OnStreamClosed(StreamId{2});
  EXPECT_THAT(answers_, ElementsAre("DEADLINE_EXCEEDED", "UNAVAILABLE"));
  reads_.EndAll(absl::CancelledError());
  EXPECT_THAT(answers_, ElementsAre("DEADLINE_EXCEEDED", "UNAVAILABLE", "CANCELLED"));
}

// Fault (display): One user reads logs without end -> That user gets 64 reads at a time, and other
// users get theirs
TEST_F(LogReadsTest, OneUsersReadsLeaveOthersTheirPlaces) {
  const auto done = [](const absl::StatusOr<v1::ReadLogReply>&) {};
  const auto add = [&](const std::string& owner) {
    return reads_.Add(StreamId{1}, false, Second(0), done, owner).status();
  };
  for (size_t i = 0; i < kLogReadsOfUserMax; ++i) EXPECT_OK(add("ann"));
  EXPECT_EQ(add("ann").message(),
            "64 logs of user ann's jobs are being read, which is the limit (logs of a user); try "
            "again when some of these reads have ended");
  EXPECT_OK(add("bob"));
}

TEST_F(LogReadsTest, TheirNumberIsBounded) {
  for (size_t i = 0; i < kLogReadsMax; ++i) Add(1, 0);
  EXPECT_THAT(reads_.Add(StreamId{1}, false, Second(0), nullptr),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

MonoTime At(absl::Duration since) { return MonoTime::FromMicros(absl::ToInt64Microseconds(since)); }

// The reply as text: "0,1 at x; n1 2+1: has gone".
std::string Words(const absl::StatusOr<v1::GetStacksReply>& reply) {
  if (!reply.ok()) return reply.status().ToString();
  std::vector<std::string> words;
  for (const v1::StackGroup& group : reply->groups()) {
    words.push_back(
        absl::StrCat(absl::StrJoin(group.ranks(), ","), " at ", group.first().no_python()));
  }
  for (const v1::SilentNode& node : reply->silent()) {
    words.push_back(
        absl::StrCat(node.node(), " ", node.first_rank(), "+", node.workers(), " ", node.why()));
  }
  return absl::StrJoin(words, "; ");
}

class StackAsksTest : public testing::Test {
 protected:
  // Nodes n0, n1, ... with two workers each, on streams 1, 2, ...; 0: not connected.
  static StackSources Sources(const std::vector<uint64_t>& streams) {
    StackSources sources;
    sources.generation = 3;
    for (size_t i = 0; i < streams.size(); ++i) {
      StackSources::Node node;
      node.member.set_node(absl::StrCat("n", i));
      node.member.set_first_rank(static_cast<uint32_t>(2 * i));
      node.member.set_slots(2);
      if (streams[i] != 0) node.stream = StreamId{streams[i]};
      if (streams[i] == 0) node.why = "is not connected now";
      sources.nodes.push_back(node);
    }
    return sources;
  }
  uint64_t Add(const std::vector<uint64_t>& streams, bool native = false) {
    v1::StackQuestion question;
    question.set_native(native);
    return *requests_.Add(Sources(streams), question, MonoTime(),
                          [this](const auto& reply) { answers_.push_back(Words(reply)); });
  }
  void Answer(uint64_t call, uint64_t stream, const std::string& place,
              const std::string& why = "") {
    v1::NodeStacks stacks;
    stacks.set_call(call);
    stacks.set_why(why);
    for (int local_rank = 0; why.empty() && local_rank < 2; ++local_rank) {
      v1::RankStack* rank = stacks.add_ranks();
      rank->mutable_evidence()->set_local_rank(local_rank);
      rank->set_no_python(place);
    }
    requests_.OnAnswer(StreamId{stream}, stacks);
  }

  StackRequests requests_;
  std::vector<std::string> answers_;
};

TEST_F(StackAsksTest, IsAnsweredWhenAllNodesHave) {
  const uint64_t call = Add({1, 2});
  Answer(call, 2, "x");
  Answer(call, 2, "again");
  EXPECT_THAT(answers_, IsEmpty());
  Answer(call, 1, "x");
  EXPECT_THAT(answers_, ElementsAre("0,1,2,3 at x"));
  Answer(call, 1, "late");
  EXPECT_THAT(answers_, ElementsAre("0,1,2,3 at x"));
  EXPECT_EQ(requests_.NextDeadline(), MonoTime::Never());
}

// Fault (access): A node that was not asked answers a request for stacks -> The answer is dropped
TEST_F(StackAsksTest, OnlyWhoWasAskedAnswers) {
  const uint64_t call = Add({1});
  Answer(call, 2, "forged");
  Answer(call + 1, 1, "another call's");
  EXPECT_THAT(answers_, IsEmpty());
  Answer(call, 1, "true");
  EXPECT_THAT(answers_, ElementsAre("0,1 at true"));
}

TEST_F(StackAsksTest, NodesThatDoNotAnswerAreNamed_AndTheRestIsTold) {
  const uint64_t call = Add({1, 0, 2, 3, 4});
  Answer(call, 1, "x");
  Answer(call, 3, "", "no worker runs there");
  requests_.OnStreamClosed(StreamId{4});
  EXPECT_EQ(requests_.NextDeadline(), At(kStacksTimeout));
  requests_.Expire(At(kStacksTimeout - absl::Milliseconds(1)));
  EXPECT_THAT(answers_, IsEmpty());
  requests_.Expire(At(kStacksTimeout));
  EXPECT_THAT(answers_,
              ElementsAre("0,1 at x; n1 2+2 is not connected now; n2 4+2 has not answered within "
                          "2.5s; n3 6+2 no worker runs there; n4 8+2 has gone"));
}

TEST_F(StackAsksTest, WhereNobodyCanBeAskedTheAnswerComesAtOnce) {
  Add({0});
  EXPECT_THAT(answers_, ElementsAre("n0 0+2 is not connected now"));
  Add({1});
  requests_.OnStreamClosed(StreamId{1});
  EXPECT_THAT(answers_, ElementsAre("n0 0+2 is not connected now", "n0 0+2 has gone"));
}

TEST_F(StackAsksTest, NativeStacksTakeLonger) {
  Add({1}, true);
  EXPECT_EQ(requests_.NextDeadline(), At(kNativeStacksTimeout));
  Add({2});
  EXPECT_EQ(requests_.NextDeadline(), At(kStacksTimeout));
}

// Fault (display): One user requests stacks without end -> That user gets 16 requests at a time,
// and other users get theirs
TEST_F(StackAsksTest, OneUsersLeaveOthersTheirPlaces) {
  const auto done = [](const absl::StatusOr<v1::GetStacksReply>&) {};
  const auto add = [&](const std::string& owner) {
    return requests_.Add(Sources({1}), {}, MonoTime(), done, owner).status();
  };
  for (size_t i = 0; i < kStackRequestsOfUserMax; ++i) EXPECT_OK(add("ann"));
  EXPECT_EQ(add("ann").message(),
            "user ann asks for the stacks of 16 jobs at once, which is the limit (stacks of a "
            "user); try again when some have answered");
  EXPECT_OK(add("bob"));
}

TEST_F(StackAsksTest, AreBounded) {
  for (size_t i = 0; i < kStackRequestsMax; ++i) Add({1});
  EXPECT_THAT(requests_.Add(Sources({1}), {}, MonoTime(), nullptr),
              StatusIs(absl::StatusCode::kResourceExhausted));
  requests_.EndAll(absl::UnavailableError("over"));
  EXPECT_EQ(answers_.size(), kStackRequestsMax);
  EXPECT_EQ(answers_[0], "UNAVAILABLE: over");
}

TEST_F(StackAsksTest, OfManySilentNodesTheRestIsCounted) {
  v1::GetStacksReply reply;
  ASSERT_OK(requests_.Add(Sources(std::vector<uint64_t>(kSilentNodesMax + 5, 0)), {}, MonoTime(),
                          [&](const auto& answered) { reply = *answered; }));
  EXPECT_EQ(reply.silent_size(), kSilentNodesMax);
  EXPECT_EQ(reply.silent_left_out(), 5u);
}

}  // namespace

}  // namespace cadre::host
