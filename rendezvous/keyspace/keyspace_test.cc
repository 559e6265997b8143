#include "rendezvous/keyspace/keyspace.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "gtest/gtest.h"
#include "rendezvous/keyspace/limits.h"

namespace cadre::keyspace {
namespace {

constexpr uint32_t kWorld = 4;

MonoTime Second(int s) { return MonoTime::FromMicros(s * int64_t{1000000}); }

// A store, with what it keeps changed only by what it returns.
class KeyspaceTest : public testing::Test {
 protected:
  Request RequestOf(Operation operation, int32_t rank = 0, uint32_t wait_ms = 0) {
    Request request;
    request.rank = rank;
    request.client = 100 + rank;
    request.id = next_request_++;
    request.wait_ms = wait_ms;
    request.operation = std::move(operation);
    return request;
  }
  Request SetOf(const std::string& key, const std::string& value) {
    return RequestOf(Set{key, value});
  }
  Request GetOf(const std::string& key, uint32_t wait_ms = 0, int32_t rank = 0) {
    return RequestOf(Get{key}, rank, wait_ms);
  }
  Request AddOf(const std::string& key, int64_t delta) { return RequestOf(Add{key, delta}); }
  Request Swap(const std::string& expected, const std::string& desired) {
    return RequestOf(CompareAndSet{"k", expected, desired});
  }
  Request Barrier(int32_t rank, uint32_t wait_ms = 1000, uint32_t size = 0) {
    return RequestOf(EnterBarrier{"b", size}, rank, wait_ms);
  }
  Request Publish(const std::string& id) { return RequestOf(PublishId{"world", id}); }

  std::vector<AnswerTo> Run(const Request& request, Asker asker = CallAsker()) {
    Outcome outcome = keyspace_.Execute(now_, stored_, kWorld, asker, request);
    if (outcome.change.has_value()) {
      ++changes_;
      stored_.Apply(*outcome.change);
    }
    const absl::Status holds = keyspace_.CheckInvariants();
    EXPECT_TRUE(holds.ok()) << holds;
    return outcome.answers;
  }
  // The answer to a request that does not wait.
  Reply Ask(const Request& request) {
    const std::vector<AnswerTo> answers = Run(request);
    EXPECT_GE(answers.size(), 1u);
    return answers.empty() ? Reply() : answers.front().reply;
  }
  absl::StatusCode CodeOf(const Request& request) { return Ask(request).code; }

  static Asker CallAsker() {
    static uint64_t next = 1;
    return Asker{next++, ""};
  }

  Keyspace keyspace_;
  Stored stored_;
  MonoTime now_ = Second(1);
  int changes_ = 0;
  uint64_t next_request_ = 1;
};

TEST_F(KeyspaceTest, SetGetDelete) {
  EXPECT_EQ(CodeOf(GetOf("k")), absl::StatusCode::kNotFound);
  EXPECT_EQ(CodeOf(SetOf("k", "v")), absl::StatusCode::kOk);
  EXPECT_EQ(Ask(GetOf("k")).value, "v");
  Request erase = RequestOf(Delete{"k"});
  EXPECT_EQ(Ask(erase).number, 1);
  erase.id = next_request_++;
  EXPECT_EQ(Ask(erase).number, 0);
  EXPECT_EQ(CodeOf(GetOf("k")), absl::StatusCode::kNotFound);
}

TEST_F(KeyspaceTest, WhereNothingMoreMayBeWrittenTheRestGoesOn) {
  Ask(SetOf("k", "v"));
  const auto ask = [this](const Request& request) {
    return keyspace_.Execute(now_, stored_, kWorld, CallAsker(), request, "ann has enough")
        .answers.at(0)
        .reply;
  };
  for (const Request& write : {SetOf("k", "w"), AddOf("n", 1), Swap("v", "w"), Publish("id")}) {
    const Reply reply = ask(write);
    EXPECT_EQ(reply.code, absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(reply.message, "ann has enough");
  }
  EXPECT_EQ(ask(GetOf("k")).value, "v");
  EXPECT_EQ(ask(RequestOf(Delete{"k"})).number, 1);
}

TEST_F(KeyspaceTest, AddCountsAndRefusesWhatIsNoNumber) {
  EXPECT_EQ(Ask(AddOf("n", 5)).number, 5);
  EXPECT_EQ(Ask(AddOf("n", -7)).number, -2);
  EXPECT_EQ(Ask(GetOf("n")).value, "-2");
  Ask(SetOf("n", "red"));
  EXPECT_EQ(CodeOf(AddOf("n", 1)), absl::StatusCode::kFailedPrecondition);
  Ask(SetOf("n", "9223372036854775807"));
  EXPECT_EQ(CodeOf(AddOf("n", 1)), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Ask(GetOf("n")).value, "9223372036854775807");
}

TEST_F(KeyspaceTest, AddToBytesIsRefusedWithText) {
  Ask(SetOf("k", "\xff\xfe\x80\x01"));
  const Reply reply = Ask(AddOf("k", 1));
  EXPECT_EQ(reply.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(IsUtf8(reply.message)) << reply.message;
  EXPECT_EQ(Ask(GetOf("k")).value, "\xff\xfe\x80\x01");
}

TEST_F(KeyspaceTest, CompareAndSetReturnsWhatTheKeyHolds) {
  EXPECT_EQ(CodeOf(Swap("red", "blue")), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Ask(Swap("", "red")).value, "red");
  const Reply lost = Ask(Swap("", "blue"));
  EXPECT_EQ(lost.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(lost.value, "red");
}

TEST_F(KeyspaceTest, ARepeatedRequestGetsTheFirstAnswer) {
  const Request add = AddOf("n", 1);
  EXPECT_EQ(Ask(add).number, 1);
  EXPECT_EQ(Ask(add).number, 1);
  EXPECT_EQ(changes_, 1);
  // A waiting one is answered once for each who asks.
  const Request get = GetOf("later", 5000);
  EXPECT_TRUE(Run(get).empty());
  EXPECT_TRUE(Run(get).empty());
  EXPECT_EQ(keyspace_.waiters(), 1u);
  EXPECT_EQ(Run(SetOf("later", "v")).size(), 3u);
  EXPECT_EQ(keyspace_.waiters(), 0u);
}

TEST_F(KeyspaceTest, ARepeatedRequestWaitsAtMostSoManyTimes) {
  const Request get = GetOf("later", 5000);
  for (size_t i = 0; i < kMaxAskersPerWaiter; ++i) EXPECT_TRUE(Run(get).empty());
  EXPECT_EQ(CodeOf(get), absl::StatusCode::kResourceExhausted);
}

TEST_F(KeyspaceTest, RememberedAnswersAreBounded) {
  for (size_t i = 0; i < kMaxAnswersPerClient + 100; ++i) Ask(AddOf("n", 1));
  EXPECT_LE(stored_.answers.size(), kMaxAnswers);
  for (size_t i = 0; i < kMaxAnswers + 10; ++i) {
    Request add = AddOf("n", 1);
    add.client = i;
    Run(add);
  }
  EXPECT_EQ(stored_.answers.size(), kMaxAnswers);
  EXPECT_EQ(keyspace_.answers(), 0u);
}

TEST_F(KeyspaceTest, ANewServerGivesTheOldAnswers) {
  const Request add = AddOf("n", 1);
  const Request first = Barrier(0, 1000, 2);
  const Request last = Barrier(1, 1000, 2);
  Ask(add);
  Run(first);
  EXPECT_EQ(Run(last).size(), 2u);
  const int changes = changes_;
  // What is volatile is gone with the old server.
  keyspace_ = Keyspace();
  EXPECT_EQ(Ask(add).number, 1);
  EXPECT_EQ(CodeOf(first), absl::StatusCode::kOk);
  EXPECT_EQ(CodeOf(last), absl::StatusCode::kOk);
  EXPECT_EQ(changes_, changes);
}

TEST_F(KeyspaceTest, WaitingEndsWithItsDeadline) {
  EXPECT_TRUE(Run(GetOf("k", 2000)).empty());
  EXPECT_EQ(keyspace_.NextDeadline(), Second(3));
  EXPECT_TRUE(keyspace_.Expire(MonoTime::FromMicros(2999999)).empty());
  const std::vector<AnswerTo> answers = keyspace_.Expire(Second(3));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].reply.code, absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(answers[0].reply.message, "nobody set key \"k\" in time");
  EXPECT_EQ(keyspace_.NextDeadline(), MonoTime::Never());
}

TEST_F(KeyspaceTest, NobodyWaitsLongerThanAnHour) {
  Run(GetOf("k", 4000000000u));
  EXPECT_EQ(keyspace_.NextDeadline(), Second(3601));
}

TEST_F(KeyspaceTest, ABarrierCountsRanksNotCalls) {
  EXPECT_TRUE(Run(Barrier(0)).empty());
  EXPECT_TRUE(Run(Barrier(0)).empty());
  EXPECT_TRUE(Run(Barrier(1)).empty());
  EXPECT_TRUE(Run(Barrier(2)).empty());
  EXPECT_EQ(Run(Barrier(3)).size(), 5u);
  // The name may be used again.
  EXPECT_TRUE(Run(Barrier(3)).empty());
}

TEST_F(KeyspaceTest, ABarrierNamesWhoIsMissing) {
  Run(Barrier(2));
  const std::vector<AnswerTo> answers = keyspace_.Expire(Second(2));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].reply.message,
            "barrier \"b\": 1 of 4 ranks came in time; missing: ranks 0, 1, 3");
  // Without a wait it answers at once.
  EXPECT_EQ(CodeOf(Barrier(1, 0)), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(KeyspaceTest, ABarrierHasOneSize) {
  Run(Barrier(0, 1000, 2));
  EXPECT_EQ(CodeOf(Barrier(1, 1000, 3)), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf(Barrier(4)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Barrier(-1)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Barrier(1, 1000, 5)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Run(Barrier(1, 1000, 2)).size(), 2u);
}

TEST_F(KeyspaceTest, WhoHasGoneIsNotCounted) {
  const Asker call = CallAsker();
  Run(Barrier(0, 1000, 2), call);
  keyspace_.ForgetCall(call.call);
  Run(Barrier(1, 1000, 2), Asker{0, "node-a"});
  EXPECT_EQ(keyspace_.waiters(), 1u);
  keyspace_.ForgetPeer("node-a");
  EXPECT_EQ(keyspace_.waiters(), 0u);
  EXPECT_TRUE(Run(Barrier(2, 1000, 2)).empty());
}

TEST_F(KeyspaceTest, AnIdIsPublishedOnce) {
  Request get = RequestOf(GetId{"world"}, 1, 1000);
  EXPECT_TRUE(Run(get).empty());
  EXPECT_EQ(Run(Publish("abc")).size(), 2u);
  EXPECT_EQ(CodeOf(Publish("abc")), absl::StatusCode::kOk);
  EXPECT_EQ(CodeOf(Publish("xyz")), absl::StatusCode::kFailedPrecondition);
  get.id = next_request_++;
  EXPECT_EQ(Ask(get).value, "abc");
}

TEST_F(KeyspaceTest, TheEndAnswersAndForgetsEverything) {
  Run(GetOf("a", 5000));
  Run(Barrier(1));
  const std::vector<AnswerTo> answers = keyspace_.End(absl::StatusCode::kAborted, "it is over");
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].reply.code, absl::StatusCode::kAborted);
  EXPECT_EQ(answers[1].reply.message, "it is over");
  EXPECT_EQ(keyspace_.waiters(), 0u);
  EXPECT_EQ(keyspace_.NextDeadline(), MonoTime::Never());
}

TEST_F(KeyspaceTest, KeysAndValuesHaveLimits) {
  EXPECT_EQ(CodeOf(SetOf("", "v")), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(SetOf(std::string(kMaxKeyBytes, 'k'), "v")), absl::StatusCode::kOk);
  EXPECT_EQ(CodeOf(SetOf(std::string(kMaxKeyBytes + 1, 'k'), "v")),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(SetOf("k", std::string(kMaxValueBytes, 'v'))), absl::StatusCode::kOk);
  EXPECT_EQ(CodeOf(SetOf("k", std::string(kMaxValueBytes + 1, 'v'))),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(KeyspaceTest, NamesAreUtf8) {
  const std::string name = "k\xff";
  const Operation operations[] = {Set{name, "v"},        Get{name},
                                  Add{name, 1},          CompareAndSet{name, "", "v"},
                                  Delete{name},          EnterBarrier{name, 2},
                                  PublishId{name, "id"}, GetId{name}};
  for (const Operation& operation : operations) {
    const Reply reply = Ask(RequestOf(operation, 0, 1000));
    EXPECT_EQ(reply.code, absl::StatusCode::kInvalidArgument) << operation.index();
    EXPECT_TRUE(absl::EndsWith(reply.message, " \"k\xef\xbf\xbd\" is not UTF-8")) << reply.message;
  }
  EXPECT_EQ(changes_, 0);
  EXPECT_EQ(keyspace_.waiters(), 0u);
  EXPECT_EQ(CodeOf(SetOf("caf\xc3\xa9", "v")), absl::StatusCode::kOk);
}

TEST_F(KeyspaceTest, AGenerationHasSoManyKeys) {
  for (size_t i = 0; i < kMaxKeys; ++i) stored_.keys[absl::StrCat("k", i)] = "v";
  EXPECT_EQ(CodeOf(SetOf("one-more", "v")), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CodeOf(Publish("abc")), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CodeOf(SetOf("k0", "w")), absl::StatusCode::kOk);
  stored_.keys.clear();
  stored_.bytes = kMaxStoreBytes;
  EXPECT_EQ(CodeOf(SetOf("k", "v")), absl::StatusCode::kResourceExhausted);
}

TEST_F(KeyspaceTest, SoManyMayWait) {
  for (size_t i = 0; i < kMaxWaiters; ++i) {
    keyspace_.Execute(now_, stored_, kWorld, CallAsker(), GetOf("k", 1000));
  }
  EXPECT_EQ(keyspace_.waiters(), kMaxWaiters);
  EXPECT_EQ(CodeOf(GetOf("k", 1000)), absl::StatusCode::kResourceExhausted);
}

TEST_F(KeyspaceTest, MessagesAreShortAndHarmless) {
  Request get = GetOf(std::string(kMaxKeyBytes, '\n'));
  const Reply reply = Ask(get);
  EXPECT_LE(reply.message.size(), kMaxMessageBytes);
  EXPECT_EQ(reply.message.find('\n'), std::string::npos);
  EXPECT_EQ(ErrorReply(1, 2, absl::StatusCode::kAborted, std::string(5000, 'x')).message.size(),
            kMaxMessageBytes);
}

}  // namespace
}  // namespace cadre::keyspace
