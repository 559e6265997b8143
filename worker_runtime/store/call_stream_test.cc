#include "worker_runtime/store/call_stream.h"

#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "rpc/frames/frame_reader.h"
#include "worker_runtime/testing/call_server.h"

namespace cadre::store {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr char kToken[] = "0123456789abcdef";

// Its server answers a get with its key; one that waits gets its answer behind the next one that
// does not. A delete ends the connection.
class CallStreamTest : public ::testing::Test {
 protected:
  // Destroyed after the server, whose socket is in it.
  struct Folder {
    Folder() { EXPECT_NE(mkdtemp(path.data()), nullptr); }
    ~Folder() { rmdir(path.c_str()); }
    std::string path = "/tmp/cadre_stream_XXXXXX";
  };
  std::vector<rpc::WorkerReply> Handle(const rpc::WorkerCall& call) {
    const rpc::Store& asked = std::get<rpc::Store>(call.what);
    if (std::holds_alternative<keyspace::Delete>(asked.operation)) {
      return {rpc::ErrorReply(0, absl::UnavailableError("leaving"))};
    }
    const rpc::WorkerReply reply = {call.id, absl::StatusCode::kOk, "",
                                    rpc::StoreResult{KeyOf(call), 0}};
    const std::lock_guard<std::mutex> lock(mutex_);
    if (asked.wait_ms > 0) {
      held_.push_back(reply);
      return {};
    }
    std::vector<rpc::WorkerReply> replies = {reply};
    replies.insert(replies.end(), held_.begin(), held_.end());
    held_.clear();
    return replies;
  }

  static std::string KeyOf(const rpc::WorkerCall& get) {
    return std::get<keyspace::Get>(std::get<rpc::Store>(get.what).operation).key;
  }
  rpc::WorkerCall NewCall(keyspace::Operation operation, uint32_t wait_ms) {
    rpc::Store asked;
    asked.wait_ms = wait_ms;
    asked.operation = std::move(operation);
    return {++last_id_, asked};
  }
  rpc::WorkerCall NewGet(uint32_t wait_ms) {
    return NewCall(keyspace::Get{std::to_string(last_id_)}, wait_ms);
  }
  // Whether the call was answered, with its own key.
  bool IsAnswered(const rpc::WorkerCall& get) {
    const Result<rpc::WorkerReply> reply = stream_.Call(get, kTimeout);
    return reply.ok() && std::get<rpc::StoreResult>(reply->what).value == KeyOf(get);
  }
  bool Get(uint32_t wait_ms) { return IsAnswered(NewGet(wait_ms)); }
  Status Delete() { return stream_.Call(NewCall(keyspace::Delete{"k"}, 0), kTimeout).status(); }

  std::atomic<uint64_t> last_id_{0};
  const Folder folder_;
  std::mutex mutex_;
  std::vector<rpc::WorkerReply> held_;
  CallServer server_{folder_.path + "/socket", kToken,
                     [this](const rpc::WorkerCall& call) { return Handle(call); }};
  CallStream stream_{[this] { return ConnectToUnixSocket(folder_.path + "/socket"); }, kToken};
};

TEST_F(CallStreamTest, OneThatWaitsDoesNotHoldUpTheOthers) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> done{false};
    bool answered = false;
    std::thread waits([&] {
      answered = Get(1);
      done = true;
    });
    bool others = true;
    while (!done && others) others = Get(0);
    waits.join();
    EXPECT_TRUE(answered && others);
  }
}

TEST_F(CallStreamTest, ManyThreadsShareOneStream) {
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 100; ++k) right += Get(0) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 800);
}

TEST_F(CallStreamTest, OneThatHasNoTimeLeftDoesNotHurtTheOthers) {
  EXPECT_THAT(stream_.Call(NewGet(1), absl::Milliseconds(1)),
              StatusIs(StatusCode::kDeadlineExceeded, ""));
  EXPECT_TRUE(Get(0));
  EXPECT_TRUE(Get(0));
}

TEST_F(CallStreamTest, AConnectionThatEndsSaysWhyAndIsMadeAnew) {
  std::atomic<bool> done{false};
  Status waited;
  std::thread waits([&] {
    waited = stream_.Call(NewGet(1), kTimeout).status();
    done = true;
  });
  // The call may have been too late for the first connection.
  Status ended;
  do {
    ended = Delete();
  } while (!done && ended.code() == StatusCode::kUnavailable);
  waits.join();
  EXPECT_THAT(ended, StatusIs(StatusCode::kUnavailable, "leaving"));
  EXPECT_THAT(waited, StatusIs(StatusCode::kUnavailable));
  EXPECT_TRUE(Get(0));
}

TEST_F(CallStreamTest, AWrongTokenIsTheAnswer) {
  CallStream pending([this] { return ConnectToUnixSocket(folder_.path + "/socket"); }, "wrong");
  EXPECT_THAT(pending.Call(NewGet(0), kTimeout),
              StatusIs(StatusCode::kUnauthenticated, "wrong token"));
}

TEST_F(CallStreamTest, NobodyListens) {
  CallStream stream([this] { return ConnectToUnixSocket(folder_.path + "/other"); }, kToken);
  EXPECT_THAT(stream.Call(NewGet(0), kTimeout), StatusIs(StatusCode::kUnavailable));
}

// More than the socket's buffers hold, in both directions.
TEST_F(CallStreamTest, LargeOperationsOfManyThreads) {
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < 5; ++k) {
        const std::string key(200000 + i, static_cast<char>('a' + i));
        right += IsAnswered(NewCall(keyspace::Get{key}, 0)) ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 40);
}

TEST_F(CallStreamTest, ClosingEndsThoseWhoWait) {
  std::atomic<bool> done{false};
  Status waited;
  std::thread waits([&] {
    waited = stream_.Call(NewGet(1), kTimeout).status();
    done = true;
  });
  stream_.Close();
  waits.join();
  EXPECT_TRUE(done);
  EXPECT_THAT(waited, StatusIs(StatusCode::kCancelled));
  EXPECT_FALSE(Get(0));
}

const wire::RecordKeys kKeys = {std::string(32, 'a'), std::string(32, 'b')};

std::string FrameOf(absl::string_view content) {
  std::string frame;
  frames::AppendFrame(content, &frame);
  return frame;
}

std::string ContentOf(const std::string& frame) {
  frames::FrameReader reader(1000);
  reader.Append(frame);
  absl::string_view content;
  EXPECT_TRUE(reader.Next(&content).value_or(false));
  return std::string(content);
}

TEST(SealedFramesTest, AreReadByTheOtherSideAlone) {
  SealedFrames near(kKeys), far({kKeys.incoming, kKeys.outgoing});
  for (const char* const content : {"a key of the store", ""}) {
    const std::string sealed = ContentOf(near.Seal(FrameOf(content)));
    EXPECT_THAT(sealed, ::testing::Not(HasSubstr("key")));
    const Result<std::string> opened = far.Open(sealed);
    ASSERT_OK(opened);
    EXPECT_EQ(*opened, content);
  }
  const Result<std::string> back = near.Open(ContentOf(far.Seal(FrameOf("its value"))));
  ASSERT_OK(back);
  EXPECT_EQ(*back, "its value");
}

// Fault (store): With `--encrypt`, a frame to the store is altered, repeated or cut off on its way
// -> The frame is not accepted, and the connection ends
TEST(SealedFramesTest, WhatIsAlteredRepeatedOrCutIsNotTaken) {
  const auto altered = StatusIs(StatusCode::kUnavailable, HasSubstr("altered on their way"));
  SealedFrames near(kKeys);
  const std::string sealed = ContentOf(near.Seal(FrameOf("content")));
  for (size_t at = 0; at < sealed.size(); ++at) {
    SealedFrames far({kKeys.incoming, kKeys.outgoing});
    std::string other = sealed;
    other[at] ^= 1;
    EXPECT_THAT(far.Open(other), altered) << at;
  }
  SealedFrames far({kKeys.incoming, kKeys.outgoing});
  EXPECT_OK(far.Open(sealed));
  EXPECT_THAT(far.Open(sealed), altered);
  EXPECT_THAT(far.Open("short"), altered);
}

}  // namespace

}  // namespace cadre::store
