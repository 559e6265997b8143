#include "worker_runtime/store_stream.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "proto/local_store.grpc.pb.h"

namespace cadre {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

// Answers a get with its key; one that waits gets its answer behind the next one that does not. A
// delete ends the stream.
class TestServer : public v1::LocalStore::Service {
 public:
  TestServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~TestServer() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  grpc::Status Converse(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::StoreReply, v1::StoreRequest>* stream) override {
    std::vector<v1::StoreReply> held;
    v1::StoreRequest request;
    while (stream->Read(&request)) {
      if (request.has_delete_()) return {grpc::StatusCode::UNAVAILABLE, "leaving"};
      v1::StoreReply reply;
      reply.set_request_id(request.request_id());
      reply.set_value(request.get().key());
      if (request.wait_ms() > 0) {
        held.push_back(reply);
        continue;
      }
      stream->Write(reply);
      for (const v1::StoreReply& late : held) stream->Write(late);
      held.clear();
    }
    return grpc::Status::OK;
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class StoreStreamTest : public ::testing::Test {
 protected:
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
  grpc::Status Delete() {
    v1::StoreRequest request;
    request.set_request_id(++last_id_);
    request.mutable_delete_()->set_key("k");
    v1::StoreReply reply;
    return stream_.Execute(request, kPatience, &reply);
  }

  std::atomic<uint64_t> last_id_{0};
  TestServer server_;
  StoreStream stream_{grpc::CreateChannel(server_.address(), grpc::InsecureChannelCredentials()),
                      ""};
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
  const grpc::Status status = stream_.Execute(NewGet(1), absl::Milliseconds(1), &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Get(0));
  EXPECT_TRUE(Get(0));
}

TEST_F(StoreStreamTest, AStreamThatEndsSaysWhyAndIsOpenedAnew) {
  std::atomic<bool> done{false};
  grpc::Status waited;
  std::thread waits([&] {
    v1::StoreReply reply;
    waited = stream_.Execute(NewGet(1), kPatience, &reply);
    done = true;
  });
  // It may have come too late for the first stream.
  grpc::Status ended;
  do {
    ended = Delete();
  } while (!done && ended.error_code() == grpc::StatusCode::UNAVAILABLE);
  waits.join();
  EXPECT_EQ(ended.error_message(), "leaving");
  EXPECT_EQ(waited.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Get(0));
}

}  // namespace
}  // namespace cadre
