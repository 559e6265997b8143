#include "worker_runtime/agent_worker.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "grpcpp/grpcpp.h"
#include "proto/local.grpc.pb.h"
#include "proto/store.pb.h"
#include "worker_runtime/testing/store_socket_server.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Minutes(1);
constexpr char kToken[] = "0123456789abcdef";

// A real gRPC server on a real unix socket, and a store on another. It keeps the requests, and
// answers as the test says.
class LocalServer : public v1::Local::Service {
 public:
  using Answer = std::function<void(const v1::StoreRequest&, v1::StoreReply*)>;

  explicit LocalServer(const std::string& socket)
      : store_(socket, kToken, [this](const v1::StoreRequest& request) {
          v1::StoreReply reply;
          reply.set_client(request.client());
          reply.set_request_id(request.request_id());
          Reply(request, &reply);
          return std::vector<v1::StoreReply>{reply};
        }) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~LocalServer() override { server_->Shutdown(std::chrono::system_clock::now()); }

  void AnswerWith(Answer answer) {
    absl::MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }
  std::vector<v1::StoreRequest> requests() {
    absl::MutexLock lock(&mutex_);
    return requests_;
  }

  grpc::Status Hello(grpc::ServerContext* context, const v1::HelloRequest* request,
                     v1::HelloReply* reply) override {
    if (!HasToken(*context)) return {grpc::StatusCode::UNAUTHENTICATED, "wrong token"};
    if (request->generation() != 7) return {grpc::StatusCode::ABORTED, "generation is 7"};
    reply->set_job("mnist");
    reply->set_generation(7);
    reply->set_rank(request->rank());
    reply->set_world_size(4);
    reply->set_local_rank(1);
    reply->set_local_world_size(2);
    reply->set_node_rank(1);
    reply->set_nodes(2);
    reply->set_restart_count(5);
    reply->set_address("10.0.0.2");
    return grpc::Status::OK;
  }

 private:
  void Reply(const v1::StoreRequest& request, v1::StoreReply* reply) {
    absl::MutexLock lock(&mutex_);
    requests_.push_back(request);
    if (answer_) answer_(request, reply);
  }

  static bool HasToken(const grpc::ServerContext& context) {
    const auto found = context.client_metadata().find("cadre-token");
    return found != context.client_metadata().end() && found->second == kToken;
  }

  absl::Mutex mutex_;
  Answer answer_;
  std::vector<v1::StoreRequest> requests_;
  StoreSocketServer store_;
  std::unique_ptr<grpc::Server> server_;
};

void SayAway(v1::StoreReply* reply) {
  reply->set_code(static_cast<int>(absl::StatusCode::kUnavailable));
  reply->set_message("the server is away");
}

class AgentWorkerTest : public ::testing::Test {
 protected:
  AgentWorkerTest() {
    char folder[] = "/tmp/cadre_worker_XXXXXX";
    EXPECT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    environment_.agent_socket = folder_ + "/agent.sock";
    environment_.token = kToken;
    environment_.generation = 7;
    environment_.rank = 3;
    StartServer();
  }
  ~AgentWorkerTest() override {
    server_.reset();
    unlink(environment_.agent_socket.c_str());
    rmdir(folder_.c_str());
  }

  void StartServer() { server_ = std::make_unique<LocalServer>(environment_.agent_socket); }

  std::unique_ptr<Worker> Connect(const AgentWorkerOptions& options = {}) {
    auto worker = ConnectToAgent(environment_, options);
    EXPECT_OK(worker);
    return *std::move(worker);
  }

  std::string folder_;
  WorkerEnvironment environment_;
  std::unique_ptr<LocalServer> server_;
};

TEST_F(AgentWorkerTest, LearnsItsPlace) {
  const auto worker = Connect();
  EXPECT_EQ(worker->place().job, "mnist");
  EXPECT_EQ(worker->place().generation, 7u);
  EXPECT_EQ(worker->rank(), 3);
  EXPECT_EQ(worker->world_size(), 4);
  EXPECT_EQ(worker->place().local_rank, 1);
  EXPECT_EQ(worker->place().local_world_size, 2);
  EXPECT_EQ(worker->place().node_rank, 1);
  EXPECT_EQ(worker->place().nodes, 2);
  EXPECT_EQ(worker->place().restart_count, 5);
  EXPECT_EQ(worker->place().address, "10.0.0.2");
}

TEST_F(AgentWorkerTest, SaysWhoIsRefused) {
  environment_.generation = 6;
  EXPECT_THAT(ConnectToAgent(environment_),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 3 of generation 6")));
  environment_.generation = 7;
  environment_.token = "another-token-123";
  EXPECT_THAT(ConnectToAgent(environment_), StatusIs(absl::StatusCode::kUnauthenticated));
}

TEST_F(AgentWorkerTest, SaysThatNobodyListens) {
  server_.reset();
  AgentWorkerOptions options;
  options.hello_patience = absl::Milliseconds(50);
  EXPECT_THAT(ConnectToAgent(environment_, options),
              StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr(environment_.agent_socket),
                                                             HasSubstr("cannot be reached"))));
}

TEST_F(AgentWorkerTest, ConnectReadsTheEnvironment) {
  setenv("CADRE_AGENT", environment_.agent_socket.c_str(), 1);
  setenv("CADRE_GENERATION", "7", 1);
  setenv("RANK", "2", 1);
  unsetenv("CADRE_PROGRESS_FD");
  unsetenv("CADRE_TOKEN_FILE");
  EXPECT_THAT(Worker::Connect(), StatusIs(absl::StatusCode::kUnauthenticated));
  unsetenv("CADRE_AGENT");
  EXPECT_THAT(Worker::Connect(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(AgentWorkerTest, SaysWhoAsksAndWhat) {
  const auto worker = Connect();
  server_->AnswerWith([](const v1::StoreRequest&, v1::StoreReply* reply) {
    reply->set_value("v");
    reply->set_number(12);
  });
  EXPECT_OK(worker->Set("a", "1"));
  EXPECT_EQ(*worker->Get("b", absl::Microseconds(1500)), "v");
  EXPECT_EQ(*worker->Add("c", 5), 12);
  EXPECT_EQ(*worker->CompareAndSet("d", "x", "y"), "v");
  EXPECT_OK(worker->Delete("e"));
  EXPECT_OK(worker->Barrier("f", kLong));
  EXPECT_OK(worker->PublishCommunicatorId("g", "id"));
  EXPECT_EQ(*worker->CommunicatorId("h", kLong), "v");

  const std::vector<v1::StoreRequest> requests = server_->requests();
  ASSERT_EQ(requests.size(), 8u);
  std::set<uint64_t> ids;
  for (const v1::StoreRequest& request : requests) {
    EXPECT_EQ(request.job(), "mnist");
    EXPECT_EQ(request.generation(), 7u);
    EXPECT_EQ(request.rank(), 3);
    EXPECT_EQ(request.client(), requests[0].client());
    ids.insert(request.request_id());
  }
  EXPECT_EQ(ids.size(), requests.size());
  EXPECT_EQ(requests[0].set().value(), "1");
  EXPECT_EQ(requests[1].get().key(), "b");
  EXPECT_THAT(requests[1].wait_ms(), ::testing::AnyOf(1u, 2u)) << "rounded up";
  EXPECT_EQ(requests[2].add().delta(), 5);
  EXPECT_EQ(requests[3].compare_and_set().expected(), "x");
  EXPECT_EQ(requests[3].compare_and_set().desired(), "y");
  EXPECT_EQ(requests[4].delete_().key(), "e");
  EXPECT_EQ(requests[5].barrier().name(), "f");
  // What is left of the timeout when the request is built.
  EXPECT_THAT(requests[5].wait_ms(),
              ::testing::AllOf(::testing::Gt(30000u), ::testing::Le(60000u)));
  EXPECT_EQ(requests[6].publish_id().id(), "id");
  EXPECT_EQ(requests[7].get_id().communicator(), "h");
}

TEST_F(AgentWorkerTest, WorkersInOneProcessAreDifferentClients) {
  const auto one = Connect();
  const auto other = Connect();
  EXPECT_OK(one->Delete("k"));
  EXPECT_OK(other->Delete("k"));
  const std::vector<v1::StoreRequest> requests = server_->requests();
  EXPECT_NE(requests[0].client(), requests[1].client());
}

TEST_F(AgentWorkerTest, PassesOnWhatTheStoreSays) {
  const auto worker = Connect();
  server_->AnswerWith([](const v1::StoreRequest&, v1::StoreReply* reply) {
    reply->set_code(static_cast<int>(absl::StatusCode::kAborted));
    reply->set_message("the current generation is 8");
  });
  EXPECT_THAT(worker->Set("a", ""),
              StatusIs(absl::StatusCode::kAborted, "Set(\"a\"): the current generation is 8"));
}

TEST_F(AgentWorkerTest, RepeatsTheSameRequestWhileItDoesNotGetThrough) {
  const auto worker = Connect();
  int left = 3;
  server_->AnswerWith([&left](const v1::StoreRequest&, v1::StoreReply* reply) {
    if (--left > 0) return SayAway(reply);
    reply->set_number(1);
  });
  EXPECT_EQ(*worker->Add("k", 1), 1);
  const std::vector<v1::StoreRequest> requests = server_->requests();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].request_id(), requests[2].request_id());
  EXPECT_EQ(requests[0].client(), requests[2].client());
}

TEST_F(AgentWorkerTest, RepetitionEndsWithItsTimeout) {
  AgentWorkerOptions options;
  options.call_patience = absl::Milliseconds(30);
  const auto worker = Connect(options);
  server_->AnswerWith([](const v1::StoreRequest&, v1::StoreReply* reply) { SayAway(reply); });
  EXPECT_THAT(worker->Set("k", "v"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the server is away")));
  EXPECT_THAT(worker->Get("k", absl::Milliseconds(50)), StatusIs(absl::StatusCode::kUnavailable));
  const std::vector<v1::StoreRequest> requests = server_->requests();
  EXPECT_GE(requests.size(), 4u);
  EXPECT_LT(requests.back().wait_ms(), 50u);
}

TEST_F(AgentWorkerTest, SurvivesAnAgentThatComesBack) {
  const auto worker = Connect();
  EXPECT_OK(worker->Set("k", "v"));
  server_.reset();
  StartServer();
  EXPECT_OK(worker->Set("k", "v"));
}

TEST_F(AgentWorkerTest, CutsLongWaits) {
  const auto worker = Connect();
  EXPECT_OK(worker->Get("k", absl::InfiniteDuration()));
  EXPECT_OK(worker->Get("k", -absl::Seconds(1)));
  const std::vector<v1::StoreRequest> requests = server_->requests();
  // What passed before the call was made is taken off.
  EXPECT_LE(requests[0].wait_ms(), 3600u * 1000);
  EXPECT_GT(requests[0].wait_ms(), 3000u * 1000);
  EXPECT_EQ(requests[1].wait_ms(), 0u);
}

TEST_F(AgentWorkerTest, RefusesWhatIsTooLong) {
  const auto worker = Connect();
  EXPECT_OK(
      worker->Set(std::string(kMaxStoreKeyBytes, 'k'), std::string(kMaxStoreValueBytes, 'v')));
  EXPECT_THAT(worker->Set(std::string(kMaxStoreKeyBytes + 1, 'k'), ""),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("257 bytes")));
  EXPECT_THAT(worker->Get("", kLong),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 to 256")));
  EXPECT_THAT(worker->Set("k", std::string(kMaxStoreValueBytes + 1, 'v')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 65536")));
  EXPECT_EQ(server_->requests().size(), 1u);
}

}  // namespace
}  // namespace cadre
