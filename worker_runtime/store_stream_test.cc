#include "worker_runtime/store_stream.h"

#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker_runtime/testing/store_socket_server.h"

namespace cadre {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr char kToken[] = "0123456789abcdef";

// Its server answers a get with its key; one that waits gets its answer behind the next one that
// does not. A delete ends the connection.
class StoreStreamTest : public ::testing::Test {
 protected:
  // Goes after the server, whose socket is in it.
  struct Folder {
    Folder() { EXPECT_NE(mkdtemp(path.data()), nullptr); }
    ~Folder() { rmdir(path.c_str()); }
    std::string path = "/tmp/cadre_stream_XXXXXX";
  };
  std::vector<v1::StoreReply> Handle(const v1::StoreRequest& request) {
    v1::StoreReply reply;
    if (request.has_delete_()) {
      reply.set_code(static_cast<int>(absl::StatusCode::kUnavailable));
      reply.set_message("leaving");
      return {reply};
    }
    reply.set_request_id(request.request_id());
    reply.set_value(request.get().key());
    const std::lock_guard<std::mutex> lock(mutex_);
    if (request.wait_ms() > 0) {
      held_.push_back(reply);
      return {};
    }
    std::vector<v1::StoreReply> replies = {reply};
    replies.insert(replies.end(), held_.begin(), held_.end());
    held_.clear();
    return replies;
  }

  v1::StoreRequest NewGet(uint32_t wait_ms) {
    v1::StoreRequest request;
    request.set_request_id(++last_id_);
    request.set_wait_ms(wait_ms);
    request.mutable_get()->set_key(std::to_string(request.request_id()));
    return request;
  }
  // Whether it was answered, with its own key.
  bool Get(uint32_t wait_ms) {
    const v1::StoreRequest request = NewGet(wait_ms);
    v1::StoreReply reply;
    return stream_.Execute(request, kPatience, &reply).ok() && reply.value() == request.get().key();
  }
  absl::Status Delete() {
    v1::StoreRequest request;
    request.set_request_id(++last_id_);
    request.mutable_delete_()->set_key("k");
    v1::StoreReply reply;
    return stream_.Execute(request, kPatience, &reply);
  }

  std::atomic<uint64_t> last_id_{0};
  const Folder folder_;
  std::mutex mutex_;
  std::vector<v1::StoreReply> held_;
  StoreSocketServer server_{folder_.path + "/socket", kToken,
                            [this](const v1::StoreRequest& request) { return Handle(request); }};
  StoreStream stream_{folder_.path + "/socket", kToken};
};

TEST_F(StoreStreamTest, OneThatWaitsDoesNotHoldUpTheOthers) {
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

TEST_F(StoreStreamTest, ManyThreadsShareOneStream) {
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

TEST_F(StoreStreamTest, OneThatHasNoTimeLeftDoesNotHurtTheOthers) {
  v1::StoreReply reply;
  EXPECT_THAT(stream_.Execute(NewGet(1), absl::Milliseconds(1), &reply),
              StatusIs(absl::StatusCode::kDeadlineExceeded, ""));
  EXPECT_TRUE(Get(0));
  EXPECT_TRUE(Get(0));
}

TEST_F(StoreStreamTest, AConnectionThatEndsSaysWhyAndIsMadeAnew) {
  std::atomic<bool> done{false};
  absl::Status waited;
  std::thread waits([&] {
    v1::StoreReply reply;
    waited = stream_.Execute(NewGet(1), kPatience, &reply);
    done = true;
  });
  // It may have come too late for the first connection.
  absl::Status ended;
  do {
    ended = Delete();
  } while (!done && absl::IsUnavailable(ended));
  waits.join();
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kUnavailable, "leaving"));
  EXPECT_THAT(waited, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(Get(0));
}

TEST_F(StoreStreamTest, AWrongTokenIsTheAnswer) {
  StoreStream stranger(folder_.path + "/socket", "wrong");
  v1::StoreReply reply;
  EXPECT_THAT(stranger.Execute(NewGet(0), kPatience, &reply),
              StatusIs(absl::StatusCode::kUnauthenticated, "wrong token"));
}

TEST_F(StoreStreamTest, NobodyListens) {
  StoreStream stream(folder_.path + "/other", kToken);
  v1::StoreReply reply;
  EXPECT_THAT(stream.Execute(NewGet(0), kPatience, &reply),
              StatusIs(absl::StatusCode::kUnavailable));
}

// More than the socket's buffers hold, in both directions.
TEST_F(StoreStreamTest, LargeOperationsOfManyThreads) {
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < 5; ++k) {
        v1::StoreRequest request = NewGet(0);
        request.mutable_get()->set_key(std::string(200000 + i, static_cast<char>('a' + i)));
        v1::StoreReply reply;
        const bool ok = stream_.Execute(request, kPatience, &reply).ok();
        right += ok && reply.value() == request.get().key() ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 40);
}

}  // namespace
}  // namespace cadre
