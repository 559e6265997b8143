#include "worker_runtime/store/agent_worker.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/keyspace/store_limits.h"
#include "rpc/worker_protocol.h"
#include "worker_runtime/testing/call_server.h"

namespace cadre::store {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);
constexpr char kToken[] = "0123456789abcdef";

// A server on a real unix socket. It records the store's requests, and answers as the test sets.
class LocalServer {
 public:
  struct Asked {
    uint64_t id = 0;
    rpc::Store store;
  };
  using Answer = std::function<void(const rpc::Store&, rpc::WorkerReply*)>;

  explicit LocalServer(const std::string& socket)
      : server_(socket, kToken, [this](const rpc::WorkerCall& call) {
          return std::vector<rpc::WorkerReply>{Reply(call)};
        }) {}

  // Answers like an agent that cannot read the hello.
  void AnswerHelloWith(const absl::Status& farewell) {
    absl::MutexLock lock(&mutex_);
    farewell_ = farewell;
  }
  void AnswerWith(Answer answer) {
    absl::MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }
  std::vector<Asked> requests() {
    absl::MutexLock lock(&mutex_);
    return requests_;
  }

 private:
  rpc::WorkerReply Reply(const rpc::WorkerCall& call) {
    absl::MutexLock lock(&mutex_);
    const auto* hello = std::get_if<rpc::Hello>(&call.what);
    if (!farewell_.ok()) return rpc::ErrorReply(0, farewell_);
    if (hello != nullptr) return PlaceOf(call.id, *hello);
    rpc::WorkerReply reply = {call.id, absl::StatusCode::kOk, "", rpc::StoreResult{}};
    const rpc::Store& store = std::get<rpc::Store>(call.what);
    requests_.push_back({call.id, store});
    if (answer_) answer_(store, &reply);
    return reply;
  }
  static rpc::WorkerReply PlaceOf(uint64_t id, const rpc::Hello& hello) {
    if (hello.from.generation != 7) {
      return rpc::ErrorReply(id, absl::AbortedError("generation is 7"));
    }
    rpc::Place place;
    place.job = "mnist";
    place.generation = 7;
    place.rank = hello.from.rank;
    place.world_size = 4;
    place.local_rank = 1;
    place.local_world_size = 2;
    place.node_rank = 1;
    place.nodes = 2;
    place.restart_count = 5;
    place.address = "10.0.0.2";
    return {id, absl::StatusCode::kOk, "", place};
  }

  absl::Mutex mutex_;
  absl::Status farewell_;
  Answer answer_;
  std::vector<Asked> requests_;
  CallServer server_;
};

void SayAway(rpc::WorkerReply* reply) {
  *reply = rpc::ErrorReply(reply->id, absl::UnavailableError("the server is away"));
}

template <typename Operation>
const Operation& In(const LocalServer::Asked& request) {
  return std::get<Operation>(request.store.operation);
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
  environment::WorkerEnvironment environment_;
  std::unique_ptr<LocalServer> server_;
};

// Fault (versions): An agent is more than one minor version away from the program's library -> The
// library's error of one line names the agent's version
TEST_F(AgentWorkerTest, AnAgentOfAnotherVersionIsNamed) {
  server_->AnswerHelloWith(absl::InvalidArgumentError("a frame of 25 bytes: its kind is unknown"));
  EXPECT_THAT(
      ConnectToAgent(environment_),
      StatusIs(StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("speaks another version of the worker protocol"),
                     HasSubstr("libcadre "), HasSubstr("use the same version of Cadre for both"),
                     HasSubstr("a frame of 25 bytes"))));
}

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
              StatusIs(StatusCode::kAborted, HasSubstr("rank 3 of generation 6")));
  environment_.generation = 7;
  environment_.token = "another-token-123";
  EXPECT_THAT(ConnectToAgent(environment_), StatusIs(StatusCode::kUnauthenticated));
}

TEST_F(AgentWorkerTest, SaysThatNobodyListens) {
  server_.reset();
  AgentWorkerOptions options;
  options.hello_timeout = absl::Milliseconds(50);
  EXPECT_THAT(ConnectToAgent(environment_, options),
              StatusIs(StatusCode::kUnavailable, AllOf(HasSubstr(environment_.agent_socket),
                                                       HasSubstr("cannot be reached"))));
}

TEST_F(AgentWorkerTest, ConnectReadsTheEnvironment) {
  setenv("CADRE_AGENT", environment_.agent_socket.c_str(), 1);
  setenv("CADRE_GENERATION", "7", 1);
  setenv("RANK", "2", 1);
  unsetenv("CADRE_PROGRESS_FD");
  unsetenv("CADRE_TOKEN_FILE");
  EXPECT_THAT(Worker::Connect(), StatusIs(StatusCode::kUnauthenticated));
  unsetenv("CADRE_AGENT");
  EXPECT_THAT(Worker::Connect(), StatusIs(StatusCode::kFailedPrecondition));
  for (const char* name : {"CADRE_GENERATION", "RANK"}) unsetenv(name);
}

TEST_F(AgentWorkerTest, SaysWhoAsksAndWhat) {
  const auto worker = Connect();
  server_->AnswerWith([](const rpc::Store&, rpc::WorkerReply* reply) {
    reply->what = rpc::StoreResult{"v", 12};
  });
  EXPECT_OK(worker->Set("a", "1"));
  EXPECT_EQ(*worker->Get("b", std::chrono::microseconds(1500)), "v");
  EXPECT_EQ(*worker->Add("c", 5), 12);
  EXPECT_EQ(*worker->CompareAndSet("d", "x", "y"), "v");
  EXPECT_OK(worker->Delete("e"));
  EXPECT_OK(worker->Barrier("f", kLong));
  EXPECT_OK(worker->PublishCommunicatorId("g", "id"));
  EXPECT_EQ(*worker->CommunicatorId("h", kLong), "v");

  const std::vector<LocalServer::Asked> requests = server_->requests();
  ASSERT_EQ(requests.size(), 8u);
  std::set<uint64_t> ids;
  for (const LocalServer::Asked& request : requests) {
    EXPECT_EQ(request.store.job, "mnist");
    EXPECT_EQ(request.store.generation, 7u);
    EXPECT_EQ(request.store.rank, 3);
    EXPECT_EQ(request.store.client, requests[0].store.client);
    ids.insert(request.id);
  }
  EXPECT_EQ(ids.size(), requests.size());
  EXPECT_EQ(In<keyspace::Set>(requests[0]).value, "1");
  EXPECT_EQ(In<keyspace::Get>(requests[1]).key, "b");
  EXPECT_THAT(requests[1].store.wait_ms, ::testing::AnyOf(1u, 2u)) << "rounded up";
  EXPECT_EQ(In<keyspace::Add>(requests[2]).delta, 5);
  EXPECT_EQ(In<keyspace::CompareAndSet>(requests[3]).expected, "x");
  EXPECT_EQ(In<keyspace::CompareAndSet>(requests[3]).desired, "y");
  EXPECT_EQ(In<keyspace::Delete>(requests[4]).key, "e");
  EXPECT_EQ(In<keyspace::EnterBarrier>(requests[5]).name, "f");
  // wait_ms is the rest of the timeout when the request is built.
  EXPECT_THAT(requests[5].store.wait_ms,
              ::testing::AllOf(::testing::Gt(30000u), ::testing::Le(60000u)));
  EXPECT_EQ(In<keyspace::PublishId>(requests[6]).id, "id");
  EXPECT_EQ(In<keyspace::GetId>(requests[7]).communicator, "h");
}

TEST_F(AgentWorkerTest, WorkersInOneProcessAreDifferentClients) {
  const auto one = Connect();
  const auto other = Connect();
  EXPECT_OK(one->Delete("k"));
  EXPECT_OK(other->Delete("k"));
  const std::vector<LocalServer::Asked> requests = server_->requests();
  EXPECT_NE(requests[0].store.client, requests[1].store.client);
}

TEST_F(AgentWorkerTest, PassesOnWhatTheStoreSays) {
  const auto worker = Connect();
  server_->AnswerWith([](const rpc::Store&, rpc::WorkerReply* reply) {
    *reply = rpc::ErrorReply(reply->id, absl::AbortedError("the current generation is 8"));
  });
  EXPECT_THAT(worker->Set("a", ""),
              StatusIs(StatusCode::kAborted, "Set(\"a\"): the current generation is 8"));
}

TEST_F(AgentWorkerTest, RepeatsTheSameRequestWhileItDoesNotGetThrough) {
  const auto worker = Connect();
  int left = 3;
  server_->AnswerWith([&left](const rpc::Store&, rpc::WorkerReply* reply) {
    if (--left > 0) return SayAway(reply);
    reply->what = rpc::StoreResult{"", 1};
  });
  EXPECT_EQ(*worker->Add("k", 1), 1);
  const std::vector<LocalServer::Asked> requests = server_->requests();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].id, requests[2].id);
  EXPECT_EQ(requests[0].store.client, requests[2].store.client);
}

TEST_F(AgentWorkerTest, RepetitionEndsWithItsTimeout) {
  AgentWorkerOptions options;
  options.call_timeout = absl::Milliseconds(30);
  const auto worker = Connect(options);
  server_->AnswerWith([](const rpc::Store&, rpc::WorkerReply* reply) { SayAway(reply); });
  EXPECT_THAT(worker->Set("k", "v"),
              StatusIs(StatusCode::kUnavailable, HasSubstr("the server is away")));
  EXPECT_THAT(worker->Get("k", std::chrono::milliseconds(50)), StatusIs(StatusCode::kUnavailable));
  const std::vector<LocalServer::Asked> requests = server_->requests();
  EXPECT_GE(requests.size(), 4u);
  EXPECT_LT(requests.back().store.wait_ms, 50u);
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
  EXPECT_OK(worker->Get("k", std::chrono::nanoseconds::max()));
  EXPECT_OK(worker->Get("k", -std::chrono::seconds(1)));
  const std::vector<LocalServer::Asked> requests = server_->requests();
  // The time that passed before the call was made is subtracted.
  EXPECT_LE(requests[0].store.wait_ms, 3600u * 1000);
  EXPECT_GT(requests[0].store.wait_ms, 3000u * 1000);
  EXPECT_EQ(requests[1].store.wait_ms, 0u);
}

TEST_F(AgentWorkerTest, RefusesNamesThatAreNotUtf8) {
  const auto worker = Connect();
  const auto refused = StatusIs(StatusCode::kInvalidArgument, HasSubstr("is not UTF-8"));
  EXPECT_THAT(worker->Set("\xff", ""), refused);
  EXPECT_THAT(worker->Get("\xff", kLong), refused);
  EXPECT_THAT(worker->Barrier("\xff", kLong), refused);
  EXPECT_THAT(worker->PublishCommunicatorId("\xff", "id"), refused);
  EXPECT_TRUE(server_->requests().empty());
}

TEST_F(AgentWorkerTest, RefusesWhatIsTooLong) {
  const auto worker = Connect();
  EXPECT_OK(worker->Set(std::string(keyspace::kMaxKeyBytes, 'k'),
                        std::string(keyspace::kMaxValueBytes, 'v')));
  EXPECT_THAT(worker->Set(std::string(keyspace::kMaxKeyBytes + 1, 'k'), ""),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("257 bytes")));
  EXPECT_THAT(worker->Get("", kLong),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("1 to 256")));
  EXPECT_THAT(worker->Set("k", std::string(keyspace::kMaxValueBytes + 1, 'v')),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("at most 65536")));
  EXPECT_EQ(server_->requests().size(), 1u);
}

}  // namespace
}  // namespace cadre::store
