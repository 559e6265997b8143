#include "worker_runtime/store/store_server.h"

#include <optional>
#include <thread>

#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/sockets/tcp_socket.h"
#include "worker_runtime/store/call_stream.h"
#include "worker_runtime/store/served_worker.h"

namespace cadre::store {
namespace {

using ::testing::HasSubstr;

constexpr char kKey[] = "0123456789abcdef";
constexpr absl::Duration kLong = absl::Minutes(1);

rpc::WorkerCall CallOf(uint64_t id, keyspace::Operation operation, int32_t rank = 0,
                       uint32_t wait_ms = 0) {
  rpc::Store store;
  store.client = 7;
  store.rank = rank;
  store.wait_ms = wait_ms;
  store.operation = std::move(operation);
  return {id, store};
}

class StoreServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto listener = sockets::Listen("127.0.0.1");
    ASSERT_OK(listener);
    auto server = StoreServer::Start(*std::move(listener), 2, kKey);
    ASSERT_OK(server);
    server_ = *std::move(server);
    client_ = Client(kKey);
  }
  std::unique_ptr<CallStream> Client(const std::string& key) {
    return std::make_unique<CallStream>(
        [at = StoreAddress{server_->endpoint(), key}] { return ConnectToStore(at, 1); },
        std::nullopt);
  }
  int64_t Add(uint64_t id, int64_t delta) {
    const auto reply = client_->Call(CallOf(id, keyspace::Add{"n", delta}), kLong);
    EXPECT_OK(reply);
    return std::get<rpc::StoreResult>(reply->what).number;
  }

  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<CallStream> client_;
};

TEST_F(StoreServerTest, AnswersWhoKnowsTheKey) {
  EXPECT_EQ(Add(8, 3), 3);
  for (const char* key : {"", "0123456789abcdee", "0123456789abcdef0"}) {
    EXPECT_THAT(Client(key)->Call(CallOf(9, keyspace::Add{"n", 3}), kLong),
                StatusIs(StatusCode::kPermissionDenied, HasSubstr("CADRE_SECRET_FILE")))
        << key;
  }
  EXPECT_EQ(server_->address_reached(), "") << "but for loopback";
  EXPECT_EQ(Add(8, 3), 3) << "the same request again";
  EXPECT_EQ(Add(10, 3), 6);
}

TEST_F(StoreServerTest, RefusesWhatMakesNoSense) {
  EXPECT_THAT(Client(kKey)->Call({1, rpc::Hello{}}, kLong), StatusIs(StatusCode::kInvalidArgument));
  for (const int rank : {-1, 2}) {
    const auto reply = client_->Call(CallOf(10 + rank, keyspace::EnterBarrier{"b"}, rank), kLong);
    ASSERT_OK(reply);
    EXPECT_EQ(reply->code, absl::StatusCode::kInvalidArgument) << rank;
  }
}

TEST_F(StoreServerTest, AWaitEndsWithItsDeadline) {
  const auto reply = client_->Call(CallOf(1, keyspace::Get{"never"}, 0, 20), kLong);
  ASSERT_OK(reply);
  EXPECT_EQ(reply->code, absl::StatusCode::kDeadlineExceeded);
}

TEST_F(StoreServerTest, WhoWaitsIsToldWhenItEnds) {
  Status status;
  std::thread waits(
      [&] { status = client_->Call(CallOf(1, keyspace::Get{"never"}, 0, 60000), kLong).status(); });
  server_.reset();
  waits.join();
  EXPECT_THAT(status, StatusIs(StatusCode::kUnavailable));
}

}  // namespace
}  // namespace cadre::store
