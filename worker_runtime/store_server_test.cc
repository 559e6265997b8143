#include "worker_runtime/store_server.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <thread>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/store.grpc.pb.h"
#include "rpc/channel_arguments.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr char kToken[] = "0123456789abcdef";

class StoreServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = StoreServer::Start("127.0.0.1", 2, kToken);
    ASSERT_OK(server);
    server_ = *std::move(server);
    stub_ = v1::Store::NewStub(
        grpc::CreateChannel("ipv4:" + server_->endpoint(), grpc::InsecureChannelCredentials()));
  }

  grpc::Status Ask(const v1::StoreRequest& request, v1::StoreReply* reply,
                   const std::string& token = kToken) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
    if (!token.empty()) context.AddMetadata(kTokenMetadata, token);
    return stub_->Execute(&context, request, reply);
  }

  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<v1::Store::Stub> stub_;
};

TEST_F(StoreServerTest, AnswersWhoKnowsTheToken) {
  v1::StoreRequest request;
  request.set_client(7);
  request.set_request_id(8);
  request.mutable_add()->set_key("n");
  request.mutable_add()->set_delta(3);
  v1::StoreReply reply;
  ASSERT_TRUE(Ask(request, &reply).ok());
  EXPECT_EQ(reply.number(), 3);
  EXPECT_EQ(reply.client(), 7u);
  EXPECT_EQ(reply.request_id(), 8u);
  for (const char* token : {"", "0123456789abcdee", "0123456789abcdef0"}) {
    EXPECT_EQ(Ask(request, &reply, token).error_code(), grpc::StatusCode::UNAUTHENTICATED) << token;
  }
  ASSERT_TRUE(Ask(request, &reply).ok());
  EXPECT_EQ(reply.number(), 6);
}

TEST_F(StoreServerTest, RefusesWhatMakesNoSense) {
  v1::StoreRequest request;
  v1::StoreReply reply;
  EXPECT_EQ(Ask(request, &reply).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.mutable_barrier()->set_name("b");
  for (const int rank : {-1, 2}) {
    request.set_rank(rank);
    EXPECT_EQ(Ask(request, &reply).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << rank;
  }
}

TEST_F(StoreServerTest, WhoWaitsIsToldWhenItEnds) {
  v1::StoreRequest request;
  request.set_wait_ms(60000);
  request.mutable_get()->set_key("never");
  grpc::Status status;
  std::thread waits([&] {
    v1::StoreReply reply;
    status = Ask(request, &reply);
  });
  server_.reset();
  waits.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
}

TEST(StoreServerStartTest, AnAddressThatIsNotHere) {
  EXPECT_THAT(StoreServer::Start("192.0.2.1", 2, kToken),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("192.0.2.1")));
}

}  // namespace
}  // namespace cadre
