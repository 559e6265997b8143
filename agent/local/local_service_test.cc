#include "agent/local/local_service.h"

#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gtest/gtest.h"
#include "proto/local.grpc.pb.h"
#include "proto/store.grpc.pb.h"
#include "rpc/frames/store_frames.h"

namespace cadre {
namespace {

constexpr std::chrono::seconds kCallLimit{20};
constexpr int kPollLimitMs = 20000;
constexpr absl::Duration kWaitLimit = absl::Seconds(20);

v1::StoreRequest RequestOf(uint64_t client, uint64_t id) {
  v1::StoreRequest request;
  request.set_client(client);
  request.set_request_id(id);
  request.mutable_get()->set_key("k");
  return request;
}

// The service with a thread in place of the daemon's loop that only accepts connections.
class LocalServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(parent_.data()), nullptr);
    LocalService::Options options;
    options.job = "j";
    options.address = "10.0.0.1";
    options.parent = parent_;
    options.on_request = [this](v1::StoreRequest request) {
      absl::MutexLock lock(&mutex_);
      if (!refuse_.ok()) return refuse_;
      requests_.push_back(std::move(request));
      return absl::OkStatus();
    };
    auto service = LocalService::Open(std::move(options));
    ASSERT_OK(service);
    service_ = *std::move(service);
    v1::Assign assign;
    assign.set_node_rank(1);
    assign.set_nodes(2);
    assign.set_first_rank(2);
    assign.set_local_world_size(2);
    assign.set_world_size(4);
    assign.set_restart_count(1);
    service_->BeginGeneration(3, assign);
    const auto token = ReadTokenFile(service_->token_path());
    ASSERT_OK(token);
    token_ = *token;
    acceptor_ = std::thread([this] {
      while (!leaving_) {
        pollfd wait = {service_->fd(), POLLIN, 0};
        if (poll(&wait, 1, 20) > 0) {
          EXPECT_THAT(service_->Accept(), IsOk());
        }
      }
    });
    channel_ =
        grpc::CreateChannel("unix:" + service_->socket_path(), grpc::InsecureChannelCredentials());
  }

  void TearDown() override {
    StopAccepting();
    service_.reset();
    EXPECT_TRUE(std::filesystem::is_empty(std::filesystem::directory_iterator(parent_)->path()));
    std::filesystem::remove_all(parent_);
  }

  void StopAccepting() {
    leaving_ = true;
    if (acceptor_.joinable()) acceptor_.join();
  }

  void Prepare(grpc::ClientContext& context, const std::string& token) {
    context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
    context.AddMetadata("cadre-token", token);
  }

  grpc::Status Hello(uint64_t generation, int rank, v1::HelloReply& reply,
                     const std::string& token) {
    grpc::ClientContext context;
    Prepare(context, token);
    v1::HelloRequest request;
    request.set_generation(generation);
    request.set_rank(rank);
    return v1::Local::NewStub(channel_)->Hello(&context, request, &reply);
  }

  grpc::Status Execute(uint64_t client, uint64_t id, v1::StoreReply& reply) {
    grpc::ClientContext context;
    Prepare(context, token_);
    return ExecuteIn(context, client, id, reply);
  }

  grpc::Status ExecuteIn(grpc::ClientContext& context, uint64_t client, uint64_t id,
                         v1::StoreReply& reply) {
    return v1::Store::NewStub(channel_)->Execute(&context, RequestOf(client, id), &reply);
  }

  // Returns when so many requests have come.
  void WaitForRequests(size_t count) {
    const auto enough = [this, count]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return requests_.size() >= count;
    };
    absl::MutexLock lock(&mutex_);
    ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&enough), kWaitLimit));
  }

  void Answer(uint64_t client, uint64_t id, const std::string& value, int code = 0) {
    v1::StoreReply reply;
    reply.set_client(client);
    reply.set_request_id(id);
    reply.set_value(value);
    reply.set_code(code);
    reply.set_message(code == 0 ? "" : "text");
    service_->Answer(reply);
  }

  std::string parent_ = "/tmp/cadre_test_XXXXXX";
  std::unique_ptr<LocalService> service_;
  std::string token_;
  std::shared_ptr<grpc::Channel> channel_;
  absl::Mutex mutex_;
  std::vector<v1::StoreRequest> requests_ ABSL_GUARDED_BY(mutex_);
  absl::Status refuse_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> leaving_{false};
  std::thread acceptor_;
};

TEST_F(LocalServiceTest, Hello_TellsAWorkerWhoItIs) {
  v1::HelloReply reply;
  const grpc::Status status = Hello(3, 3, reply, token_);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.job(), "j");
  EXPECT_EQ(reply.generation(), 3u);
  EXPECT_EQ(reply.rank(), 3u);
  EXPECT_EQ(reply.local_rank(), 1u);
  EXPECT_EQ(reply.node_rank(), 1u);
  EXPECT_EQ(reply.world_size(), 4u);
  EXPECT_EQ(reply.local_world_size(), 2u);
  EXPECT_EQ(reply.nodes(), 2u);
  EXPECT_EQ(reply.restart_count(), 1u);
  EXPECT_EQ(reply.address(), "10.0.0.1");
}

TEST_F(LocalServiceTest, Hello_Refusals) {
  v1::HelloReply reply;
  EXPECT_EQ(Hello(2, 3, reply, token_).error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(Hello(3, 1, reply, token_).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Hello(3, 4, reply, token_).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Hello(3, -1, reply, token_).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Hello(3, 3, reply, "wrong").error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(LocalServiceTest, Execute_AnswerGoesToTheClientThatAsked) {
  v1::StoreReply first;
  v1::StoreReply second;
  std::thread one([&] { EXPECT_TRUE(Execute(1, 7, first).ok()); });
  std::thread two([&] { EXPECT_TRUE(Execute(2, 7, second).ok()); });
  WaitForRequests(2);
  Answer(2, 7, "two");
  Answer(1, 7, "one");
  one.join();
  two.join();
  EXPECT_EQ(first.value(), "one");
  EXPECT_EQ(second.value(), "two");
}

TEST_F(LocalServiceTest, Execute_RepeatedRequest_BothAreAnswered) {
  v1::StoreReply first;
  v1::StoreReply second;
  std::thread one([&] { EXPECT_TRUE(Execute(1, 7, first).ok()); });
  WaitForRequests(1);
  std::thread two([&] { EXPECT_TRUE(Execute(1, 7, second).ok()); });
  WaitForRequests(2);
  Answer(1, 7, "v");
  one.join();
  two.join();
  EXPECT_EQ(first.value(), "v");
  EXPECT_EQ(second.value(), "v");
}

TEST_F(LocalServiceTest, Execute_Errors_AreTheCallsStatus) {
  v1::StoreReply reply;
  grpc::Status status;
  std::thread call([&] { status = Execute(1, 7, reply); });
  WaitForRequests(1);
  Answer(1, 7, "", static_cast<int>(absl::StatusCode::kNotFound));
  call.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "text");
}

TEST_F(LocalServiceTest, Execute_FailedCompareAndSet_ReturnsWhatItFound) {
  v1::StoreReply reply;
  std::thread call([&] { EXPECT_TRUE(Execute(1, 7, reply).ok()); });
  WaitForRequests(1);
  Answer(1, 7, "other", static_cast<int>(absl::StatusCode::kFailedPrecondition));
  call.join();
  EXPECT_EQ(reply.value(), "other");
  EXPECT_EQ(reply.code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
}

TEST_F(LocalServiceTest, Execute_LoopThatIsFull_RefusesAtOnce) {
  {
    absl::MutexLock lock(&mutex_);
    refuse_ = absl::ResourceExhaustedError("full");
  }
  v1::StoreReply reply;
  EXPECT_EQ(Execute(1, 7, reply).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(LocalServiceTest, TheTokenOfAnotherJobsAgentIsGoodForNothing) {
  std::string elsewhere = "/tmp/cadre_test_XXXXXX";
  ASSERT_NE(mkdtemp(elsewhere.data()), nullptr);
  LocalService::Options options;
  options.job = "another";
  options.parent = elsewhere;
  auto other = LocalService::Open(std::move(options));
  ASSERT_OK(other);
  const std::string token = (*other)->token();
  // One of an agent that has ended, too.
  for (int times = 0; times < 2; ++times) {
    v1::HelloReply place;
    EXPECT_EQ(Hello(3, 3, place, token).error_code(), grpc::StatusCode::UNAUTHENTICATED);
    grpc::ClientContext context;
    Prepare(context, token);
    v1::StoreReply reply;
    EXPECT_EQ(ExecuteIn(context, 1, 7, reply).error_code(), grpc::StatusCode::UNAUTHENTICATED);
    other->reset();
  }
  std::filesystem::remove_all(elsewhere);
}

TEST_F(LocalServiceTest, Execute_CallerGivesUp_AnswerIsForgotten) {
  v1::StoreReply reply;
  grpc::ClientContext context;
  Prepare(context, token_);
  grpc::Status status;
  std::thread call([&] { status = ExecuteIn(context, 1, 7, reply); });
  WaitForRequests(1);
  context.TryCancel();
  call.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  Answer(1, 7, "late");
}

TEST_F(LocalServiceTest, Store_IsServedBesideTheCalls) {
  StopAccepting();
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = StoreSocketPath(service_->socket_path());
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  std::string bytes;
  frames::AppendFrame(token_, &bytes);
  AppendStoreFrame(RequestOf(1, 7), &bytes);
  ASSERT_EQ(send(socket, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  pollfd asked = {service_->store_fd(), POLLIN, 0};
  std::vector<v1::StoreRequest> requests;
  while (requests.empty() && poll(&asked, 1, kPollLimitMs) == 1) requests = service_->ReadStore();
  ASSERT_EQ(requests.size(), 1u);
  Answer(1, 7, "v");
  pollfd answered = {socket, POLLIN, 0};
  ASSERT_EQ(poll(&answered, 1, kPollLimitMs), 1);
  frames::FrameReader reader{kStoreFrameBytesMax};
  absl::string_view frame;
  ASSERT_OK(reader.ReadFrom(socket));
  const absl::StatusOr<bool> found = reader.Next(&frame);
  ASSERT_OK(found);
  EXPECT_TRUE(*found);
  v1::StoreReply reply;
  EXPECT_TRUE(reply.ParseFromString(std::string(frame)));
  EXPECT_EQ(reply.value(), "v");
  close(socket);
}

TEST_F(LocalServiceTest, Leaving_WakesWhoWaits) {
  v1::StoreReply reply;
  grpc::Status status;
  std::thread call([&] { status = Execute(1, 7, reply); });
  WaitForRequests(1);
  StopAccepting();
  service_.reset();
  call.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(LocalServiceTest, TwoHundredCallsAtOnce_AreAllAnswered) {
  constexpr uint64_t kCalls = 200;
  std::vector<std::thread> calls;
  std::atomic<uint64_t> right{0};
  for (uint64_t id = 0; id < kCalls; ++id) {
    calls.emplace_back([&, id] {
      v1::StoreReply reply;
      if (Execute(1, id, reply).ok() && reply.value() == std::to_string(id)) ++right;
    });
  }
  WaitForRequests(kCalls);
  for (uint64_t id = 0; id < kCalls; ++id) Answer(1, id, std::to_string(id));
  for (std::thread& call : calls) call.join();
  EXPECT_EQ(right, kCalls);
}

}  // namespace
}  // namespace cadre
