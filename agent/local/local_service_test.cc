#include "agent/local/local_service.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/frames/codec.h"
#include "rpc/frames/frame_reader.h"
#include "worker_runtime/store/agent_worker.h"

namespace cadre::agent {
namespace {

using ::testing::HasSubstr;

constexpr int kPollLimitMs = 20000;

// The worker's end.
class Client {
 public:
  Client(const std::string& path, const std::string& token)
      : socket_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    std::string bytes;
    frames::AppendFrame(token, &bytes);
    Send(bytes);
  }
  ~Client() { close(socket_); }

  void Say(const rpc::WorkerCall& call) {
    std::string bytes;
    frames::AppendMessage(call, &bytes);
    Send(bytes);
  }
  void Send(const std::string& bytes) {
    ASSERT_EQ(send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  rpc::WorkerReply Read() {
    absl::string_view content;
    for (;;) {
      const absl::StatusOr<bool> found = reader_.Next(&content);
      if (found.ok() && *found) break;
      pollfd wait = {socket_, POLLIN, 0};
      if (!found.ok() || poll(&wait, 1, kPollLimitMs) != 1 || !reader_.ReadFrom(socket_).ok()) {
        ADD_FAILURE() << "no answer";
        return {};
      }
    }
    const auto reply = frames::ParseMessage<rpc::WorkerReply>(content);
    EXPECT_OK(reply);
    return reply.ok() ? *reply : rpc::WorkerReply();
  }

 private:
  const int socket_;
  frames::FrameReader reader_{rpc::kWorkerFrameBytesMax};
};

rpc::WorkerCall Hello(uint64_t generation, int32_t rank) {
  return {1, rpc::Hello{{generation, rank, 99}}};
}

rpc::WorkerCall Get(uint64_t client, uint64_t id) {
  rpc::Store store;
  store.job = "j";
  store.generation = 3;
  store.client = client;
  store.rank = 2;
  store.wait_ms = 5;
  store.operation = keyspace::Get{"k"};
  return {id, store};
}

// Ranks 2 and 3 of 4 run on this node, in generation 3.
class LocalServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(parent_.data()), nullptr);
    LocalService::Options options;
    options.job = "j";
    options.address = "10.0.0.1";
    options.parent = parent_;
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
  }
  void TearDown() override {
    service_.reset();
    EXPECT_TRUE(std::filesystem::is_empty(std::filesystem::directory_iterator(parent_)->path()));
    std::filesystem::remove_all(parent_);
  }

  std::unique_ptr<Client> Connect() {
    return std::make_unique<Client>(service_->socket_path(), token_);
  }
  // All requests for the core, until there is nothing more to read.
  std::vector<v1::StoreRequest> ReadAll() {
    std::vector<v1::StoreRequest> all;
    pollfd wait = {service_->fd(), POLLIN, 0};
    while (poll(&wait, 1, 0) == 1) {
      for (const AgentEvent& event : service_->Read()) {
        all.push_back(std::get<StoreRequested>(event).request);
      }
    }
    return all;
  }
  rpc::WorkerReply Ask(Client& client, const rpc::WorkerCall& call) {
    client.Say(call);
    return Await(client);
  }
  rpc::WorkerReply Await(Client& client) {
    EXPECT_TRUE(ReadAll().empty());
    return client.Read();
  }
  void Answer(uint64_t client, uint64_t id, const std::string& value,
              absl::StatusCode code = absl::StatusCode::kOk) {
    v1::StoreReply reply;
    reply.set_client(client);
    reply.set_request_id(id);
    reply.set_value(value);
    reply.set_code(static_cast<int>(code));
    reply.set_message(code == absl::StatusCode::kOk ? "" : "text");
    service_->Answer(reply);
  }

  std::string parent_ = "/tmp/cadre_test_XXXXXX";
  std::unique_ptr<LocalService> service_;
  std::string token_;
};

TEST_F(LocalServiceTest, WorkersConnectAfterItsDirectoryWasRemoved) {
  const auto before = Connect();
  ASSERT_OK(Ask(*before, Hello(3, 3)).status());
  std::filesystem::remove_all(service_->directory());
  EXPECT_TRUE(service_->RestoreDirectory().value_or(false));
  EXPECT_FALSE(service_->RestoreDirectory().value_or(true));
  const auto after = Connect();
  EXPECT_OK(Ask(*after, Hello(3, 2)).status());
}

TEST_F(LocalServiceTest, Hello_TellsAWorkerWhoItIs) {
  const auto client = Connect();
  const rpc::WorkerReply reply = Ask(*client, Hello(3, 3));
  ASSERT_OK(reply.status());
  const auto& place = std::get<rpc::Place>(reply.what);
  EXPECT_EQ(place.job, "j");
  EXPECT_EQ(place.generation, 3u);
  EXPECT_EQ(place.rank, 3u);
  EXPECT_EQ(place.local_rank, 1u);
  EXPECT_EQ(place.node_rank, 1u);
  EXPECT_EQ(place.world_size, 4u);
  EXPECT_EQ(place.local_world_size, 2u);
  EXPECT_EQ(place.nodes, 2u);
  EXPECT_EQ(place.restart_count, 1u);
  EXPECT_EQ(place.address, "10.0.0.1");
}

// Fault (versions): A program's library is more than one minor version away from its agent -> The
// program gets an error of one line that says so
TEST_F(LocalServiceTest, Hello_OfAnotherVersionIsToldSo) {
  const auto client = Connect();
  rpc::WorkerCall call = Hello(3, 3);
  std::get<rpc::Hello>(call.what).protocol = 77;
  rpc::WorkerReply reply = Ask(*client, call);
  EXPECT_EQ(reply.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(reply.message,
              HasSubstr("speaks version 77: use the same version of Cadre for both"));
  // Any bytes after the version are accepted: a later version may send more.
  std::string bytes;
  frames::AppendMessage(call, &bytes);
  frames::AppendFrame(absl::StrCat(bytes.substr(frames::kLengthBytes), "and more"), &bytes);
  client->Send(bytes);
  for (int i = 0; i < 2; ++i) {
    reply = Await(*client);
    EXPECT_EQ(reply.id, 1u);
    EXPECT_EQ(reply.code, absl::StatusCode::kFailedPrecondition);
  }
}

TEST_F(LocalServiceTest, Hello_ThatCannotBeReadIsToldWhichVersionCan) {
  const auto client = Connect();
  std::string bytes;
  frames::AppendFrame(std::string("\1\0\0\0\0\0\0\0\1", 9) + std::string("\2\0\0\0", 4), &bytes);
  client->Send(bytes);
  const rpc::WorkerReply reply = Await(*client);
  EXPECT_EQ(reply.id, 0u);
  EXPECT_EQ(reply.code, absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(reply.message, HasSubstr("which speaks version 2 of the worker protocol"));
}

TEST_F(LocalServiceTest, Hello_Refusals) {
  const auto client = Connect();
  EXPECT_EQ(Ask(*client, Hello(2, 3)).code, absl::StatusCode::kAborted);
  for (const int rank : {1, 4, -1}) {
    EXPECT_EQ(Ask(*client, Hello(3, rank)).code, absl::StatusCode::kNotFound) << rank;
  }
  Client stranger(service_->socket_path(), "wrong");
  const rpc::WorkerReply reply = Ask(stranger, Hello(3, 3));
  EXPECT_EQ(reply.id, 0u);
  EXPECT_EQ(reply.code, absl::StatusCode::kUnauthenticated);
}

TEST_F(LocalServiceTest, Execute_AnswerGoesToTheClientThatAsked) {
  const auto one = Connect(), two = Connect();
  one->Say(Get(1, 7));
  two->Say(Get(2, 7));
  const std::vector<v1::StoreRequest> requests = ReadAll();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].job(), "j");
  EXPECT_EQ(requests[0].generation(), 3u);
  EXPECT_EQ(requests[0].rank(), 2);
  EXPECT_EQ(requests[0].wait_ms(), 5u);
  EXPECT_EQ(requests[0].request_id(), 7u);
  EXPECT_EQ(requests[0].get().key(), "k");
  Answer(2, 7, "two");
  Answer(1, 7, "one");
  EXPECT_EQ(std::get<rpc::StoreResult>(one->Read().what).value, "one");
  EXPECT_EQ(std::get<rpc::StoreResult>(two->Read().what).value, "two");
}

TEST_F(LocalServiceTest, EveryOperationReachesTheServer) {
  const auto client = Connect();
  const keyspace::Operation operations[] = {keyspace::Set{"a", "1"},
                                            keyspace::Get{"b"},
                                            keyspace::Add{"c", -2},
                                            keyspace::CompareAndSet{"d", "x", "y"},
                                            keyspace::Delete{"e"},
                                            keyspace::EnterBarrier{"f", 3},
                                            keyspace::PublishId{"g", "bytes"},
                                            keyspace::GetId{"h"}};
  uint64_t id = 0;
  for (const keyspace::Operation& operation : operations) {
    rpc::Store store;
    store.operation = operation;
    client->Say({++id, store});
  }
  const std::vector<v1::StoreRequest> requests = ReadAll();
  ASSERT_EQ(requests.size(), 8u);
  EXPECT_EQ(requests[0].set().key() + requests[0].set().value(), "a1");
  EXPECT_EQ(requests[1].get().key(), "b");
  EXPECT_EQ(requests[2].add().key(), "c");
  EXPECT_EQ(requests[2].add().delta(), -2);
  EXPECT_EQ(requests[3].compare_and_set().key(), "d");
  EXPECT_EQ(requests[3].compare_and_set().expected(), "x");
  EXPECT_EQ(requests[3].compare_and_set().desired(), "y");
  EXPECT_EQ(requests[4].delete_().key(), "e");
  EXPECT_EQ(requests[5].barrier().name(), "f");
  EXPECT_EQ(requests[5].barrier().size(), 3u);
  EXPECT_EQ(requests[6].publish_id().communicator() + requests[6].publish_id().id(), "gbytes");
  EXPECT_EQ(requests[7].get_id().communicator(), "h");
}

TEST_F(LocalServiceTest, Execute_RepeatedRequest_BothAreAnswered) {
  const auto one = Connect(), two = Connect();
  one->Say(Get(1, 7));
  two->Say(Get(1, 7));
  EXPECT_EQ(ReadAll().size(), 2u);
  Answer(1, 7, "v");
  EXPECT_EQ(std::get<rpc::StoreResult>(one->Read().what).value, "v");
  EXPECT_EQ(std::get<rpc::StoreResult>(two->Read().what).value, "v");
}

TEST_F(LocalServiceTest, Execute_Errors_AreTheCallsStatus) {
  const auto client = Connect();
  client->Say(Get(1, 7));
  EXPECT_EQ(ReadAll().size(), 1u);
  Answer(1, 7, "", absl::StatusCode::kNotFound);
  EXPECT_THAT(client->Read().status(), StatusIs(absl::StatusCode::kNotFound, "text"));
}

TEST_F(LocalServiceTest, Execute_FailedCompareAndSet_ReturnsWhatItFound) {
  const auto client = Connect();
  client->Say(Get(1, 7));
  EXPECT_EQ(ReadAll().size(), 1u);
  Answer(1, 7, "other", absl::StatusCode::kFailedPrecondition);
  const rpc::WorkerReply reply = client->Read();
  EXPECT_EQ(reply.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::get<rpc::StoreResult>(reply.what).value, "other");
}

// Fault (access): A token of another job's agent is shown to an agent's socket -> The connection is
// refused
TEST_F(LocalServiceTest, TheTokenOfAnotherJobsAgentIsGoodForNothing) {
  std::string elsewhere = "/tmp/cadre_test_XXXXXX";
  ASSERT_NE(mkdtemp(elsewhere.data()), nullptr);
  LocalService::Options options;
  options.job = "another";
  options.parent = elsewhere;
  auto other = LocalService::Open(std::move(options));
  ASSERT_OK(other);
  const std::string token = (*other)->token();
  // Also with the agent's end in between.
  for (int times = 0; times < 2; ++times) {
    for (const rpc::WorkerCall& call : {Hello(3, 3), Get(1, 7)}) {
      Client client(service_->socket_path(), token);
      EXPECT_EQ(Ask(client, call).code, absl::StatusCode::kUnauthenticated);
    }
    other->reset();
  }
  std::filesystem::remove_all(elsewhere);
}

TEST_F(LocalServiceTest, Execute_CallerGoes_AnswerIsForgotten) {
  auto client = Connect();
  client->Say(Get(1, 7));
  EXPECT_EQ(ReadAll().size(), 1u);
  client.reset();
  EXPECT_TRUE(ReadAll().empty());
  Answer(1, 7, "late");
}

TEST_F(LocalServiceTest, WhatIsNoCallEndsTheConnection) {
  const auto client = Connect();
  std::string bytes;
  frames::AppendFrame("\xff\xff\xff", &bytes);
  client->Send(bytes);
  EXPECT_TRUE(ReadAll().empty());
  const rpc::WorkerReply reply = client->Read();
  EXPECT_EQ(reply.id, 0u);
  EXPECT_EQ(reply.code, absl::StatusCode::kInvalidArgument);
}

TEST_F(LocalServiceTest, Leaving_WakesWhoWaits) {
  const auto client = Connect();
  client->Say(Get(1, 7));
  EXPECT_EQ(ReadAll().size(), 1u);
  service_.reset();
  EXPECT_THAT(client->Read().status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the agent is shutting down")));
}

TEST_F(LocalServiceTest, TwoHundredCallsAtOnce_AreAllAnswered) {
  constexpr uint64_t kCalls = 200;
  const auto client = Connect();
  for (uint64_t id = 1; id <= kCalls; ++id) client->Say(Get(1, id));
  EXPECT_EQ(ReadAll().size(), kCalls);
  for (uint64_t id = 1; id <= kCalls; ++id) Answer(1, id, std::to_string(id));
  for (uint64_t id = 1; id <= kCalls; ++id) {
    const rpc::WorkerReply reply = client->Read();
    EXPECT_EQ(std::get<rpc::StoreResult>(reply.what).value, std::to_string(reply.id));
  }
}

// The worker runtime's end of a rejoin, with the agent's service in between.

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

v1::Assign AssignOf(uint32_t first_rank, uint32_t world_size) {
  v1::Assign assign;
  assign.set_nodes(1);
  assign.set_first_rank(first_rank);
  assign.set_local_world_size(2);
  assign.set_world_size(world_size);
  return assign;
}

// Ranks 2 and 3 of 4 run on this node, in generation 3.
class RejoinCallsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(parent_.data()), nullptr);
    LocalService::Options options;
    options.job = "j";
    options.parent = parent_;
    auto service = LocalService::Open(std::move(options));
    ASSERT_OK(service);
    service_ = *std::move(service);
    service_->BeginGeneration(3, AssignOf(2, 4), /*in_place=*/true);
    loop_ = std::thread([this] {
      while (!leaving_) {
        pollfd wait = {service_->fd(), POLLIN, 0};
        if (poll(&wait, 1, 20) <= 0) continue;
        absl::MutexLock lock(&mutex_);
        for (AgentEvent& event : service_->Read()) events_.push_back(std::move(event));
      }
    });
  }
  void TearDown() override {
    Leave();
    std::filesystem::remove_all(parent_);
  }

  void Leave() {
    leaving_ = true;
    if (loop_.joinable()) loop_.join();
    service_.reset();
  }
  void Begin(uint64_t generation, const v1::Assign& assign, bool in_place = false,
             const std::set<uint32_t>& kept = {}) {
    absl::MutexLock lock(&mutex_);
    service_->BeginGeneration(generation, assign, in_place, kept);
  }
  void End(const std::set<uint32_t>& kept, const std::string& reason) {
    absl::MutexLock lock(&mutex_);
    service_->EndGeneration(kept, reason);
  }
  bool WouldStandBy() {
    absl::MutexLock lock(&mutex_);
    return service_->WouldStandBy();
  }

  environment::WorkerEnvironment Environment() {
    environment::WorkerEnvironment environment;
    environment.agent_socket = service_->socket_path();
    const auto token = ReadTokenFile(service_->token_path());
    EXPECT_OK(token);
    environment.token = *token;
    return environment;
  }
  std::unique_ptr<Worker> Connect(int rank) {
    environment::WorkerEnvironment environment = Environment();
    environment.generation = 3;
    environment.rank = rank;
    auto worker = store::ConnectToAgent(environment);
    EXPECT_OK(worker);
    return *std::move(worker);
  }

  bool Await(const std::function<bool()>& condition) {
    const auto holds = [&condition] { return condition(); };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&holds), absl::FromChrono(kLong));
  }
  // Waits until the worker has reported that it can rejoin, or no longer can.
  void AwaitMay(uint32_t local_rank, bool may) {
    EXPECT_TRUE(Await([&] {
      for (const AgentEvent& event : events_) {
        const auto* said = std::get_if<WorkerMayRejoin>(&event);
        if (said != nullptr && said->local_rank == local_rank && said->may == may) return true;
      }
      return false;
    }));
  }
  std::string AwaitWaits(uint32_t local_rank) {
    std::string reason;
    EXPECT_TRUE(Await([&] {
      for (const AgentEvent& event : events_) {
        const auto* waits = std::get_if<WorkerWaits>(&event);
        if (waits == nullptr || waits->local_rank != local_rank) continue;
        EXPECT_EQ(waits->generation, 3u);
        reason = waits->reason;
        return true;
      }
      return false;
    }));
    return reason;
  }

  std::string parent_ = "/tmp/cadre_test_XXXXXX";
  absl::Mutex mutex_;
  std::vector<AgentEvent> events_;
  std::unique_ptr<LocalService> service_;
  std::atomic<bool> leaving_{false};
  std::thread loop_;
};

TEST_F(RejoinCallsTest, AKeptWorkerHearsOfTheEnd_AndGetsItsNextPlace) {
  const auto worker = Connect(3);
  EXPECT_TRUE(worker->in_place());
  bool ended = false;
  ASSERT_OK(worker->AnnounceRejoin([&] {
    absl::MutexLock lock(&mutex_);
    ended = true;
  }));
  AwaitMay(1, true);
  End({1}, "rank 0 died");
  EXPECT_TRUE(Await([&] { return ended; }));
  std::thread agent([&] {
    EXPECT_EQ(AwaitWaits(1), "rank 0 \xef\xbf\xbd is gone");
    Begin(4, AssignOf(0, 2), true, {1});
  });
  const auto next = worker->Rejoin("rank 0 \xff is gone", kLong);
  agent.join();
  ASSERT_OK(next);
  EXPECT_EQ((*next)->place().generation, 4u);
  EXPECT_EQ((*next)->rank(), 1);
  EXPECT_EQ((*next)->world_size(), 2);
  // It can rejoin again.
  ASSERT_OK((*next)->AnnounceRejoin([] {}));
}

TEST_F(RejoinCallsTest, AWorkerThatIsNotKept_IsTold) {
  const auto worker = Connect(3), early = Connect(2);
  ASSERT_OK(worker->AnnounceRejoin([] {}));
  AwaitMay(1, true);
  std::thread waits([&] {
    EXPECT_THAT(early->Rejoin("", kLong),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("not kept")));
  });
  AwaitWaits(0);
  End({}, "the job has ended");
  waits.join();
  EXPECT_THAT(worker->Rejoin("", kLong),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("not kept")));
}

TEST_F(RejoinCallsTest, AWorkerThatLeaves_CanRejoinNoLonger) {
  auto worker = Connect(2);
  bool ended = false;
  ASSERT_OK(worker->AnnounceRejoin([&] { ended = true; }));
  AwaitMay(0, true);
  worker.reset();
  AwaitMay(0, false);
  EXPECT_FALSE(ended);
}

TEST_F(RejoinCallsTest, TheAgentLeaves_WhoWaitsIsTold) {
  const auto worker = Connect(2);
  std::thread waits(
      [&] { EXPECT_THAT(worker->Rejoin("", kLong), StatusIs(absl::StatusCode::kUnavailable)); });
  AwaitWaits(0);
  Leave();
  waits.join();
}

TEST_F(RejoinCallsTest, AProcessWouldStandBy_WhereWorkersTakePart) {
  EXPECT_FALSE(WouldStandBy());
  const auto worker = Connect(2);
  EXPECT_FALSE(WouldStandBy());
  ASSERT_OK(worker->AnnounceRejoin([] {}));
  AwaitMay(0, true);
  EXPECT_TRUE(WouldStandBy());
  End({0}, "over");
  EXPECT_FALSE(WouldStandBy());
  // Without recovery in place, it is enough that the workers use the worker runtime.
  Begin(3, AssignOf(2, 4));
  EXPECT_FALSE(WouldStandBy());
  Connect(3);
  EXPECT_TRUE(WouldStandBy());
}

TEST_F(RejoinCallsTest, AJobThatDoesNotRecoverInPlace_SaysSo) {
  Begin(3, AssignOf(2, 4));
  const auto worker = Connect(2);
  EXPECT_FALSE(worker->in_place());
  EXPECT_THAT(worker->AnnounceRejoin([] {}), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(worker->Rejoin("", kLong), StatusIs(absl::StatusCode::kFailedPrecondition));
}

rpc::Store SetOf(const std::string& job, const std::string& key) {
  rpc::Store call;
  call.job = job;
  call.operation = keyspace::Set{key, "v"};
  return call;
}

TEST(StoreCallsTest, WhatNoRequestCanCarryIsRefusedHere) {
  std::vector<rpc::WorkerReply> replies;
  StoreCalls calls([&](uint64_t, const rpc::WorkerReply& reply) { replies.push_back(reply); });
  EXPECT_TRUE(calls.Take(1, 7, SetOf("j", "caf\xc3\xa9")).has_value());
  EXPECT_FALSE(calls.Take(1, 8, SetOf("j", "k\xff")).has_value());
  EXPECT_FALSE(calls.Take(1, 9, SetOf("\xff", "k")).has_value());
  ASSERT_EQ(replies.size(), 2u);
  for (const rpc::WorkerReply& reply : replies) {
    EXPECT_EQ(reply.code, absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(reply.message, HasSubstr("is not UTF-8"));
  }
}

}  // namespace
}  // namespace cadre::agent
