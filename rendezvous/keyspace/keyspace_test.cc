#include "rendezvous/keyspace/keyspace.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

constexpr uint32_t kWorld = 4;

MonoTime Second(int s) { return MonoTime::FromMicros(s * int64_t{1000000}); }

// A keyspace with its durable half, changed only by the records it returns.
class KeyspaceTest : public testing::Test {
 protected:
  v1::StoreRequest Request(int32_t rank) {
    v1::StoreRequest request;
    request.set_generation(1);
    request.set_rank(rank);
    request.set_client(100 + rank);
    request.set_request_id(next_request_++);
    return request;
  }
  v1::StoreRequest Set(const std::string& key, const std::string& value) {
    v1::StoreRequest request = Request(0);
    request.mutable_set()->set_key(key);
    request.mutable_set()->set_value(value);
    return request;
  }
  v1::StoreRequest Get(const std::string& key, uint32_t wait_ms = 0, int32_t rank = 0) {
    v1::StoreRequest request = Request(rank);
    request.mutable_get()->set_key(key);
    request.set_wait_ms(wait_ms);
    return request;
  }
  v1::StoreRequest Add(const std::string& key, int64_t delta) {
    v1::StoreRequest request = Request(0);
    request.mutable_add()->set_key(key);
    request.mutable_add()->set_delta(delta);
    return request;
  }
  v1::StoreRequest Swap(const std::string& expected, const std::string& desired) {
    v1::StoreRequest request = Request(0);
    request.mutable_compare_and_set()->set_key("k");
    request.mutable_compare_and_set()->set_expected(expected);
    request.mutable_compare_and_set()->set_desired(desired);
    return request;
  }
  v1::StoreRequest Barrier(int32_t rank, uint32_t wait_ms = 1000, uint32_t size = 0) {
    v1::StoreRequest request = Request(rank);
    request.mutable_barrier()->set_name("b");
    request.mutable_barrier()->set_size(size);
    request.set_wait_ms(wait_ms);
    return request;
  }
  v1::StoreRequest Publish(const std::string& id) {
    v1::StoreRequest request = Request(0);
    request.mutable_publish_id()->set_communicator("world");
    request.mutable_publish_id()->set_id(id);
    return request;
  }

  std::vector<StoreAnswerTo> Run(const v1::StoreRequest& request, Asker asker = CallAsker()) {
    StoreOutcome outcome = keyspace_.Execute(now_, stored_, kWorld, asker, request);
    if (outcome.append.has_value()) Keep(*outcome.append);
    const absl::Status holds = keyspace_.CheckInvariants();
    EXPECT_TRUE(holds.ok()) << holds;
    return outcome.answers;
  }
  // The answer to a request that does not wait.
  v1::StoreReply Ask(const v1::StoreRequest& request) {
    const std::vector<StoreAnswerTo> answers = Run(request);
    EXPECT_GE(answers.size(), 1u);
    return answers.empty() ? v1::StoreReply() : answers.front().reply;
  }
  absl::StatusCode CodeOf(const v1::StoreRequest& request) {
    return static_cast<absl::StatusCode>(Ask(request).code());
  }

  static Asker CallAsker() {
    static uint64_t next = 1;
    return Asker{CallId{next++}, ""};
  }

  void Keep(const v1::Record& record) {
    ++records_;
    for (const v1::StoreReply& reply : record.answers()) stored_.answers.Remember(reply);
    if (record.has_key_written()) {
      stored_.keys[record.key_written().key()] = record.key_written().value();
      stored_.bytes += record.key_written().key().size() + record.key_written().value().size();
    }
    if (record.has_key_erased()) stored_.keys.erase(record.key_erased().key());
    if (record.has_communicator_id_published()) {
      stored_.communicator_ids[record.communicator_id_published().communicator()] =
          record.communicator_id_published().id();
    }
  }

  Keyspace keyspace_;
  StoredKeys stored_;
  MonoTime now_ = Second(1);
  int records_ = 0;
  uint64_t next_request_ = 1;
};

TEST_F(KeyspaceTest, SetGetDelete) {
  EXPECT_EQ(CodeOf(Get("k")), absl::StatusCode::kNotFound);
  EXPECT_EQ(CodeOf(Set("k", "v")), absl::StatusCode::kOk);
  EXPECT_EQ(Ask(Get("k")).value(), "v");
  v1::StoreRequest erase = Request(0);
  erase.mutable_delete_()->set_key("k");
  EXPECT_EQ(Ask(erase).number(), 1);
  erase.set_request_id(next_request_++);
  EXPECT_EQ(Ask(erase).number(), 0);
  EXPECT_EQ(CodeOf(Get("k")), absl::StatusCode::kNotFound);
}

TEST_F(KeyspaceTest, AddCountsAndRefusesWhatIsNoNumber) {
  EXPECT_EQ(Ask(Add("n", 5)).number(), 5);
  EXPECT_EQ(Ask(Add("n", -7)).number(), -2);
  EXPECT_EQ(Ask(Get("n")).value(), "-2");
  Ask(Set("n", "red"));
  EXPECT_EQ(CodeOf(Add("n", 1)), absl::StatusCode::kFailedPrecondition);
  Ask(Set("n", "9223372036854775807"));
  EXPECT_EQ(CodeOf(Add("n", 1)), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Ask(Get("n")).value(), "9223372036854775807");
}

TEST_F(KeyspaceTest, CompareAndSetReturnsWhatTheKeyHolds) {
  EXPECT_EQ(CodeOf(Swap("red", "blue")), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Ask(Swap("", "red")).value(), "red");
  const v1::StoreReply lost = Ask(Swap("", "blue"));
  EXPECT_EQ(lost.code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(lost.value(), "red");
}

TEST_F(KeyspaceTest, ARepeatedRequestGetsTheFirstAnswer) {
  const v1::StoreRequest add = Add("n", 1);
  EXPECT_EQ(Ask(add).number(), 1);
  EXPECT_EQ(Ask(add).number(), 1);
  EXPECT_EQ(records_, 1);
  // A waiting one is answered once for each who asks.
  const v1::StoreRequest get = Get("later", 5000);
  EXPECT_TRUE(Run(get).empty());
  EXPECT_TRUE(Run(get).empty());
  EXPECT_EQ(keyspace_.waiters(), 1u);
  EXPECT_EQ(Run(Set("later", "v")).size(), 3u);
  EXPECT_EQ(keyspace_.waiters(), 0u);
}

TEST_F(KeyspaceTest, ARepeatedRequestWaitsAtMostSoManyTimes) {
  const v1::StoreRequest get = Get("later", 5000);
  for (size_t i = 0; i < kMaxAskersPerWaiter; ++i) EXPECT_TRUE(Run(get).empty());
  EXPECT_EQ(CodeOf(get), absl::StatusCode::kResourceExhausted);
}

TEST_F(KeyspaceTest, RememberedAnswersAreBounded) {
  for (size_t i = 0; i < kMaxAnswersPerClient + 100; ++i) Ask(Add("n", 1));
  EXPECT_LE(stored_.answers.size(), kMaxAnswers);
  for (size_t i = 0; i < kMaxAnswers + 10; ++i) {
    v1::StoreRequest add = Add("n", 1);
    add.set_client(i);
    Run(add);
  }
  EXPECT_EQ(stored_.answers.size(), kMaxAnswers);
  EXPECT_EQ(keyspace_.answers(), 0u);
}

TEST_F(KeyspaceTest, ANewServerGivesTheOldAnswers) {
  const v1::StoreRequest add = Add("n", 1);
  const v1::StoreRequest first = Barrier(0, 1000, 2);
  const v1::StoreRequest last = Barrier(1, 1000, 2);
  Ask(add);
  Run(first);
  EXPECT_EQ(Run(last).size(), 2u);
  const int records = records_;
  // What is volatile is gone with the old server.
  keyspace_ = Keyspace();
  EXPECT_EQ(Ask(add).number(), 1);
  EXPECT_EQ(CodeOf(first), absl::StatusCode::kOk);
  EXPECT_EQ(CodeOf(last), absl::StatusCode::kOk);
  EXPECT_EQ(records_, records);
}

TEST_F(KeyspaceTest, WaitingEndsWithItsDeadline) {
  EXPECT_TRUE(Run(Get("k", 2000)).empty());
  EXPECT_EQ(keyspace_.NextDeadline(), Second(3));
  EXPECT_TRUE(keyspace_.Expire(MonoTime::FromMicros(2999999)).empty());
  const std::vector<StoreAnswerTo> answers = keyspace_.Expire(Second(3));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].reply.code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(answers[0].reply.message(), "nobody set key \"k\" in time");
  EXPECT_EQ(keyspace_.NextDeadline(), MonoTime::Never());
}

TEST_F(KeyspaceTest, NobodyWaitsLongerThanAnHour) {
  Run(Get("k", 4000000000u));
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
  const std::vector<StoreAnswerTo> answers = keyspace_.Expire(Second(2));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].reply.message(),
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
  keyspace_.ForgetCall(call.call.value());
  Run(Barrier(1, 1000, 2), Asker{std::nullopt, "node-a"});
  EXPECT_EQ(keyspace_.waiters(), 1u);
  keyspace_.ForgetNode("node-a");
  EXPECT_EQ(keyspace_.waiters(), 0u);
  EXPECT_TRUE(Run(Barrier(2, 1000, 2)).empty());
}

TEST_F(KeyspaceTest, AnIdIsPublishedOnce) {
  v1::StoreRequest get = Request(1);
  get.mutable_get_id()->set_communicator("world");
  get.set_wait_ms(1000);
  EXPECT_TRUE(Run(get).empty());
  EXPECT_EQ(Run(Publish("abc")).size(), 2u);
  EXPECT_EQ(CodeOf(Publish("abc")), absl::StatusCode::kOk);
  EXPECT_EQ(CodeOf(Publish("xyz")), absl::StatusCode::kFailedPrecondition);
  get.set_request_id(next_request_++);
  EXPECT_EQ(Ask(get).value(), "abc");
}

TEST_F(KeyspaceTest, TheEndAnswersAndForgetsEverything) {
  Run(Get("a", 5000));
  Run(Barrier(1));
  const std::vector<StoreAnswerTo> answers =
      keyspace_.End(absl::StatusCode::kAborted, "it is over");
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].reply.code(), static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_EQ(answers[1].reply.message(), "it is over");
  EXPECT_EQ(keyspace_.waiters(), 0u);
  EXPECT_EQ(keyspace_.NextDeadline(), MonoTime::Never());
}

TEST_F(KeyspaceTest, KeysAndValuesHaveLimits) {
  EXPECT_EQ(CodeOf(Set("", "v")), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Set(std::string(kMaxKeyBytes, 'k'), "v")), absl::StatusCode::kOk);
  EXPECT_EQ(CodeOf(Set(std::string(kMaxKeyBytes + 1, 'k'), "v")),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Set("k", std::string(kMaxValueBytes, 'v'))), absl::StatusCode::kOk);
  EXPECT_EQ(CodeOf(Set("k", std::string(kMaxValueBytes + 1, 'v'))),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Request(0)), absl::StatusCode::kInvalidArgument);
}

TEST_F(KeyspaceTest, AGenerationHasSoManyKeys) {
  for (size_t i = 0; i < kMaxKeys; ++i) stored_.keys[absl::StrCat("k", i)] = "v";
  EXPECT_EQ(CodeOf(Set("one-more", "v")), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CodeOf(Publish("abc")), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CodeOf(Set("k0", "w")), absl::StatusCode::kOk);
  stored_.keys.clear();
  stored_.bytes = kMaxStoreBytes;
  EXPECT_EQ(CodeOf(Set("k", "v")), absl::StatusCode::kResourceExhausted);
}

TEST_F(KeyspaceTest, SoManyMayWait) {
  for (size_t i = 0; i < kMaxWaiters; ++i) {
    keyspace_.Execute(now_, stored_, kWorld, CallAsker(), Get("k", 1000));
  }
  EXPECT_EQ(keyspace_.waiters(), kMaxWaiters);
  EXPECT_EQ(CodeOf(Get("k", 1000)), absl::StatusCode::kResourceExhausted);
}

TEST_F(KeyspaceTest, MessagesAreShortAndHarmless) {
  v1::StoreRequest get = Get(std::string(kMaxKeyBytes, '\n'));
  const v1::StoreReply reply = Ask(get);
  EXPECT_LE(reply.message().size(), kMaxReplyMessageBytes);
  EXPECT_EQ(reply.message().find('\n'), std::string::npos);
  EXPECT_EQ(ErrorReply(get, absl::StatusCode::kAborted, std::string(5000, 'x')).message().size(),
            kMaxReplyMessageBytes);
}

}  // namespace
}  // namespace cadre
