#include "agent/local/local_service.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/frames/frame_reader.h"
#include "rpc/frames/messages.h"

namespace cadre::agent {
namespace {

using ::testing::HasSubstr;

constexpr int kPollLimitMs = 20000;

// A worker's end.
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

// Ranks 2 and 3 of 4 live here, in generation 3.
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
  // All that is asked of the core until there is nothing more to read.
  std::vector<v1::StoreRequest> ReadAll() {
    std::vector<v1::StoreRequest> all;
    pollfd wait = {service_->fd(), POLLIN, 0};
    while (poll(&wait, 1, 0) == 1) {
      for (const AgentEvent& event : service_->Read()) {
        all.push_back(std::get<WorkerAsked>(event).request);
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

TEST_F(LocalServiceTest, Hello_OfAnotherVersionIsToldSo) {
  const auto client = Connect();
  rpc::WorkerCall call = Hello(3, 3);
  std::get<rpc::Hello>(call.what).protocol = 77;
  rpc::WorkerReply reply = Ask(*client, call);
  EXPECT_EQ(reply.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(reply.message, HasSubstr("with version 77: use the same version of Cadre for both"));
  // Whatever follows the version: a later one may say more.
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

// As the library of 0.2 has it, byte for byte.
std::string HelloOfBefore() {
  std::string bytes;
  frames::AppendFrame(std::string("\1\0\0\0\0\0\0\0\1"
                                  "\3\0\0\0\0\0\0\0\3\0\0\0\x63\0\0\0",
                                  25),
                      &bytes);
  return bytes;
}

TEST_F(LocalServiceTest, Hello_OfTheVersionBeforeIsAnswered) {
  const auto client = Connect();
  client->Send(HelloOfBefore());
  const rpc::WorkerReply reply = Await(*client);
  ASSERT_OK(reply.status());
  EXPECT_EQ(std::get<rpc::Place>(reply.what).rank, 3u);
  // The same is what a library of now says to an agent of before.
  std::string said;
  rpc::WorkerCall call = Hello(3, 3);
  std::get<rpc::Hello>(call.what).protocol = rpc::kWorkerProtocolBefore;
  frames::AppendMessage(call, &said);
  EXPECT_EQ(said, HelloOfBefore());
}

TEST_F(LocalServiceTest, Hello_OfTheVersionBeforeIsRefusedWhereTheJobEncrypts) {
  service_->SetEncrypts(true);
  const auto client = Connect();
  client->Send(HelloOfBefore());
  const rpc::WorkerReply reply = Await(*client);
  EXPECT_EQ(reply.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(reply.message, HasSubstr("of before 0.3, cannot: build it with that of 0."));
  EXPECT_OK(Ask(*client, Hello(3, 3)).status());
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
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the agent is leaving")));
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

}  // namespace
}  // namespace cadre::agent
