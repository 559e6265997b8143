#include "rendezvous/keyspace/keyspace.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/keyspace/store_content.h"
#include "rendezvous/keyspace/store_limits.h"

namespace cadre::keyspace {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

constexpr uint32_t kWorld = 4;

MonoTime Second(int s) { return MonoTime::FromMicros(s * int64_t{1000000}); }

// A Keyspace and its content, to which the fixture applies each change that is returned.
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

  std::vector<AddressedReply> Run(const Request& request, Requester requester = CallAsker()) {
    Outcome outcome = keyspace_.Execute(now_, stored_, kWorld, requester, request);
    if (outcome.change.has_value()) {
      ++changes_;
      stored_.Apply(*outcome.change);
    }
    const absl::Status holds = keyspace_.CheckInvariants();
    EXPECT_TRUE(holds.ok()) << holds;
    return outcome.answers;
  }
  // Returns the answer to a request that does not wait.
  Reply Ask(const Request& request) {
    const std::vector<AddressedReply> answers = Run(request);
    EXPECT_GE(answers.size(), 1u);
    return answers.empty() ? Reply() : answers.front().reply;
  }
  absl::StatusCode CodeOf(const Request& request) { return Ask(request).code; }

  static Requester CallAsker() {
    static uint64_t next = 1;
    return Requester{next++, ""};
  }

  Keyspace keyspace_;
  StoreContent stored_;
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

// Fault (store): A worker adds to a key that holds bytes -> The call fails with
// FAILED_PRECONDITION, and its text has replacements for bytes that are not UTF-8
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

// Fault (store): A store request is sent twice -> It is executed once, and both get the first
// answer
TEST_F(KeyspaceTest, ARepeatedRequestGetsTheFirstAnswer) {
  const Request add = AddOf("n", 1);
  EXPECT_EQ(Ask(add).number, 1);
  EXPECT_EQ(Ask(add).number, 1);
  EXPECT_EQ(changes_, 1);
  // A waiting request is answered once for each requester.
  const Request get = GetOf("later", 5000);
  EXPECT_TRUE(Run(get).empty());
  EXPECT_TRUE(Run(get).empty());
  EXPECT_EQ(keyspace_.waiters(), 1u);
  EXPECT_EQ(Run(SetOf("later", "v")).size(), 3u);
  EXPECT_EQ(keyspace_.waiters(), 0u);
}

// Fault (store): A store request is sent again while the first one waits -> Both wait, up to a
// limit, and get one answer
TEST_F(KeyspaceTest, ARepeatedRequestWaitsAtMostSoManyTimes) {
  const Request get = GetOf("later", 5000);
  for (size_t i = 0; i < kMaxRequestersPerWaiter; ++i) EXPECT_TRUE(Run(get).empty());
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
  // A new server has lost what is volatile.
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
  const std::vector<AddressedReply> answers = keyspace_.Expire(Second(3));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].reply.code, absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(answers[0].reply.message, "no rank set key \"k\" in time");
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
  const std::vector<AddressedReply> answers = keyspace_.Expire(Second(2));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].reply.message,
            "barrier \"b\": 1 of 4 ranks arrived in time; missing: ranks 0, 1, 3");
  // With a wait of 0 it answers at once.
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
  const Requester call = CallAsker();
  Run(Barrier(0, 1000, 2), call);
  keyspace_.ForgetCall(call.call);
  Run(Barrier(1, 1000, 2), Requester{0, "node-a"});
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
  const std::vector<AddressedReply> answers =
      keyspace_.End(absl::StatusCode::kAborted, "it is over");
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

// Fault (store): A program names a key, barrier or communicator with bytes that are not UTF-8 ->
// The call fails with INVALID_ARGUMENT in the runtime, else in the agent or the server, and nothing
// is saved
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

TEST(StoredTest, BytesAreThoseOfWhatIsThere) {
  StoreContent stored;
  stored.Apply({KeyWritten{"k", "value"}, {}});
  stored.Apply({IdPublished{"k", "id"}, {}});
  EXPECT_EQ(stored.bytes, 9u);
  stored.Apply({KeyWritten{"k", "v"}, {}});
  EXPECT_EQ(stored.bytes, 5u);
  stored.Apply({KeyErased{"absent"}, {}});
  stored.Apply({KeyErased{"k"}, {}});
  EXPECT_EQ(stored.bytes, 3u);
  EXPECT_TRUE(stored.keys.empty());
  EXPECT_EQ(stored.communicator_ids.at("k"), "id");
}

TEST(StoredTest, AnswersAreRememberedWithTheChange) {
  StoreContent stored;
  Reply reply;
  reply.client = 1;
  reply.id = 2;
  reply.number = 7;
  stored.Apply({Answered{}, {reply}});
  ASSERT_NE(stored.answers.Find(1, 2), nullptr);
  EXPECT_EQ(stored.answers.Find(1, 2)->number, 7);
  EXPECT_EQ(stored.answers.Find(1, 3), nullptr);
}

Reply ReplyOf(uint64_t client, uint64_t id) {
  Reply reply;
  reply.client = client;
  reply.id = id;
  return reply;
}

ReplyCache Remembered(const std::vector<std::pair<uint64_t, uint64_t>>& requests) {
  ReplyCache answers;
  for (const auto& [client, id] : requests) answers.Remember(ReplyOf(client, id));
  return answers;
}

std::vector<std::pair<uint64_t, uint64_t>> All(const ReplyCache& answers) {
  std::vector<std::pair<uint64_t, uint64_t>> all;
  for (const Reply* reply : answers.All()) all.emplace_back(reply->client, reply->id);
  return all;
}

TEST(AnswersTest, AreFoundByClientAndRequest) {
  const ReplyCache answers = Remembered({{1, 10}, {2, 10}, {1, 12}});
  EXPECT_EQ(answers.Find(1, 12)->id, 12u);
  EXPECT_EQ(answers.Find(2, 10)->client, 2u);
  for (const uint64_t id : {9, 11, 13}) EXPECT_EQ(answers.Find(1, id), nullptr);
  EXPECT_EQ(answers.Find(3, 10), nullptr);
}

TEST(AnswersTest, AreListedAsTheyCame_AlsoWhereIdsDidNotGrow) {
  EXPECT_THAT(
      All(Remembered({{1, 10}, {2, 7}, {1, 13}, {1, 11}, {2, 8}, {1, 12}})),
      ElementsAre(Pair(1, 10), Pair(2, 7), Pair(1, 13), Pair(1, 11), Pair(2, 8), Pair(1, 12)));
}

TEST(AnswersTest, TheFirstAnswerStays) {
  ReplyCache answers = Remembered({{1, 10}, {1, 11}});
  Reply again = ReplyOf(1, 10);
  again.value = "another";
  answers.Remember(std::move(again));
  EXPECT_EQ(answers.Find(1, 10)->value, "");
  EXPECT_EQ(answers.size(), 2u);
}

TEST(AnswersTest, AClientThatAsksALotLosesItsOldest) {
  ReplyCache answers = Remembered({{2, 1}});
  for (uint64_t id = 1; id <= kMaxAnswersPerClient + 1; ++id) answers.Remember(ReplyOf(1, id));
  EXPECT_EQ(answers.Find(1, 1), nullptr);
  EXPECT_NE(answers.Find(1, 2), nullptr);
  EXPECT_NE(answers.Find(2, 1), nullptr);
  EXPECT_EQ(answers.All().size(), kMaxAnswersPerClient + 1);
}

// Fault (store): A client makes more store requests than answers are remembered (1,024) -> Its own
// oldest answers are forgotten, and no other client's
TEST(AnswersTest, AClientThatAsksALotLosesNobodyElses) {
  ReplyCache answers = Remembered({{2, 1}});
  for (uint64_t id = 1; id <= 2 * kMaxAnswers; ++id) answers.Remember(ReplyOf(1, id));
  EXPECT_NE(answers.Find(2, 1), nullptr);
  EXPECT_EQ(answers.size(), kMaxAnswersPerClient + 1);
}

// Fault (store): A server with many remembered answers restarts from a snapshot -> It has forgotten
// the same answers as before
TEST(AnswersTest, WhatIsForgottenIsTheSameAfterASnapshot) {
  ReplyCache live = Remembered({{0, 1}});
  for (uint64_t id = 1; id <= 3 * kMaxAnswersPerClient; ++id) live.Remember(ReplyOf(1, id));
  ReplyCache restored;
  for (const Reply* reply : live.All()) restored.Remember(*reply);
  for (uint64_t client = 2; restored.size() < kMaxAnswers; ++client) {
    for (ReplyCache* answers : {&live, &restored}) answers->Remember(ReplyOf(client, 1));
  }
  EXPECT_EQ(All(live), All(restored));
  // These push out the oldest reply of all, and the next one.
  for (const uint64_t id : {1, 2}) {
    for (ReplyCache* answers : {&live, &restored}) answers->Remember(ReplyOf(0, 1 + id));
  }
  EXPECT_EQ(live.Find(0, 1), nullptr);
  EXPECT_EQ(live.Find(1, 2 * kMaxAnswersPerClient + 1), nullptr);
  EXPECT_EQ(live.size(), kMaxAnswers);
  EXPECT_EQ(All(live), All(restored));
}

}  // namespace

}  // namespace cadre::keyspace
