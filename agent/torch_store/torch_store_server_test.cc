// The store's server with real sockets on loopback, served by the test's own thread; and how it
// parses requests, queues answers and recognizes the nodes' addresses.
#include "agent/torch_store/torch_store_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/torch_store/agent_store.h"
#include "agent/torch_store/byte_budget.h"
#include "agent/torch_store/store_client_rig.h"
#include "agent/torch_store/torch_request.h"
#include "base/scoped_fd.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kZero(1, '\0'), kOne(1, '\1');

class TorchStoreServerTest : public ::testing::Test {
 protected:
  void Open(TorchStoreServer::Options options = {}) {
    auto listener = ListenAt("127.0.0.1", 0);
    ASSERT_OK(listener);
    port_ = PortOf(*listener);
    options.listener = *std::move(listener);
    options.nodes = *NodeAddresses::Make("127.0.0.1", {});
    options.report = [this](std::string line) { lines_.push_back(std::move(line)); };
    auto made = TorchStoreServer::Make(std::move(options));
    ASSERT_OK(made);
    server_ = *std::move(made);
  }
  std::function<void()> Serving() {
    return [this] {
      if (server_ != nullptr) server_->Serve(absl::ZeroDuration());
    };
  }
  std::unique_ptr<StoreClient> ConnectUnvalidated(const char* from = "127.0.0.1") {
    return std::make_unique<StoreClient>(port_, Serving(), from);
  }
  // A connection that has validated.
  std::unique_ptr<StoreClient> Client() {
    auto client = ConnectUnvalidated();
    EXPECT_TRUE(client->Send(ValidateBytes() + PingBytes(77)));
    EXPECT_EQ(client->Read(4), rpc::LittleEndian32(77));
    return client;
  }
  // Waits until there are `count` connections.
  void AwaitConnections(size_t count) {
    const MonoTime deadline = MonoNow() + absl::Seconds(20);
    while (server_->connections() != count && MonoNow() < deadline) {
      server_->Serve(absl::Milliseconds(1));
    }
    EXPECT_EQ(server_->connections(), count);
  }

  uint16_t port_ = 0;
  std::vector<std::string> lines_;
  std::unique_ptr<TorchStoreServer> server_;
};

TEST_F(TorchStoreServerTest, ClientsShareKeys) {
  Open();
  const auto one = Client(), other = Client();
  ASSERT_TRUE(one->Send(TextsRequest(TorchOp::kSet, {"/a", "value"})));
  ASSERT_TRUE(one->Send(PingBytes(1)));
  EXPECT_EQ(one->Read(4), rpc::LittleEndian32(1));
  ASSERT_TRUE(other->Send(TextsRequest(TorchOp::kGet, {"/a"})));
  EXPECT_EQ(other->Read(13), rpc::TorchText("value"));
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(TorchStoreServerTest, AWaitEndsWithTheLastKey) {
  Open();
  const auto waits = Client(), sets = Client();
  ASSERT_TRUE(waits->Send(KeysRequest(TorchOp::kWait, {"/a", "/b"})));
  ASSERT_TRUE(sets->Send(TextsRequest(TorchOp::kSet, {"/a", ""}) +
                         TextsRequest(TorchOp::kSet, {"/b", ""})));
  EXPECT_EQ(waits->Read(1), kZero);
}

TEST_F(TorchStoreServerTest, WhoEndsWaitsNoMore) {
  Open();
  auto waits = Client();
  const auto sets = Client();
  ASSERT_TRUE(waits->Send(KeysRequest(TorchOp::kWait, {"/a"})));
  waits.reset();
  AwaitConnections(1);
  ASSERT_TRUE(sets->Send(TextsRequest(TorchOp::kSet, {"/a", ""}) + PingBytes(3)));
  EXPECT_EQ(sets->Read(4), rpc::LittleEndian32(3));
}

// Fault (access): A client of PyTorch's store skips the protocol's first message -> Its connection
// is closed
TEST_F(TorchStoreServerTest, WhoDoesNotValidateFirstIsDropped) {
  Open();
  const auto keeps = Client();
  EXPECT_TRUE(ConnectUnvalidated()->Send(PingBytes(1)));
  for (const std::string& first :
       {PingBytes(1), rpc::TorchOpByte(TorchOp::kValidate) + rpc::LittleEndian32(1),
        std::string("GET / HTTP/1.1"),
        rpc::TorchOpByte(TorchOp::kSet) + rpc::LittleEndian64(UINT64_MAX)}) {
    const auto unvalidated = ConnectUnvalidated();
    unvalidated->Send(first);
    EXPECT_TRUE(unvalidated->IsClosed());
  }
  AwaitConnections(1);
  EXPECT_THAT(lines_, ElementsAre(AllOf(HasSubstr("from 127.0.0.1"), HasSubstr("PyTorch 2.1"))));
  ASSERT_TRUE(keeps->Send(PingBytes(9)));
  EXPECT_EQ(keeps->Read(4), rpc::LittleEndian32(9));
}

TEST_F(TorchStoreServerTest, GarbageEndsTheConnection) {
  Open();
  for (const std::string& garbage :
       {std::string("\x13"), std::string("\xff\xff"), ValidateBytes(),
        rpc::TorchOpByte(TorchOp::kSet) + rpc::LittleEndian64(9000),
        rpc::TorchOpByte(TorchOp::kWait) + rpc::LittleEndian64(1 << 20)}) {
    const auto client = Client();
    client->Send(garbage);
    EXPECT_TRUE(client->IsClosed());
  }
  AwaitConnections(0);
  EXPECT_EQ(server_->held_bytes(), 0u);
}

// Fault (access): A client of PyTorch's store sends nothing for 10 s (50 ms in the test) -> Its
// connection is closed, and the agent says so once
TEST_F(TorchStoreServerTest, WhoSaysNothingIsDroppedInTime) {
  TorchStoreServer::Options options;
  options.validation_time = absl::Milliseconds(50);
  Open(std::move(options));
  const auto silent = ConnectUnvalidated();
  const auto slow = ConnectUnvalidated();
  ASSERT_TRUE(slow->Send(ValidateBytes().substr(0, 3)));
  EXPECT_TRUE(silent->IsClosed());
  EXPECT_TRUE(slow->IsClosed());
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("no valid first message within 50ms")));
  // A validated connection may be silent.
  const auto client = Client();
  const MonoTime later = MonoNow() + absl::Milliseconds(100);
  while (MonoNow() < later) server_->Serve(absl::Milliseconds(10));
  ASSERT_TRUE(client->Send(PingBytes(2)));
  EXPECT_EQ(client->Read(4), rpc::LittleEndian32(2));
}

// Fault (access): A client on another machine that takes no part in the job connects to the store
// that an agent serves to PyTorch -> It is refused, and the agent says so once
TEST_F(TorchStoreServerTest, OtherMachinesAreRefused) {
  Open();
  EXPECT_TRUE(ConnectUnvalidated("127.0.0.9")->IsClosed());
  EXPECT_TRUE(ConnectUnvalidated("127.0.0.9")->IsClosed());
  EXPECT_THAT(lines_, ElementsAre(AllOf(HasSubstr("from 127.0.0.9"),
                                        HasSubstr("--set agent_store=false"))));
  Client();
}

// Several users may share a node, and all of them connect from the node's address.
//
// Fault (access): Another user of a shared node connects to a job's ports -> The connection is
// dropped, because the kernel tells which user it belongs to
TEST_F(TorchStoreServerTest, OtherUsersOfThisMachineAreRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  Open();
  ASSERT_EQ(seteuid(12345), 0);
  auto client = ConnectUnvalidated();
  EXPECT_EQ(seteuid(0), 0);
  EXPECT_TRUE(client->IsClosed());
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("a process of user 12345 on this machine")));
  Client();
}

// Fault (store): More clients connect to the agent's PyTorch store than it takes -> The surplus
// connections are refused, and the others are served
TEST_F(TorchStoreServerTest, ConnectionsOverTheLimitAreRefused) {
  TorchStoreServer::Options options;
  options.max_connections = 2;
  Open(std::move(options));
  auto one = Client();
  const auto two = Client();
  EXPECT_TRUE(ConnectUnvalidated()->IsClosed());
  EXPECT_TRUE(ConnectUnvalidated()->IsClosed());
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("has 2 connections already")));
  one.reset();
  AwaitConnections(1);
  Client();
}

// Fault (store): The process that serves PyTorch's store runs out of descriptors -> New clients are
// refused, and the others are served
TEST_F(TorchStoreServerTest, WithoutDescriptorsOthersAreServed) {
  Open();
  const auto client = Client();
  const auto waits = ConnectUnvalidated();
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_TRUE(client->Send(PingBytes(2)));
  EXPECT_EQ(client->Read(4), rpc::LittleEndian32(2));
  while (lines_.empty()) server_->Serve(absl::Milliseconds(10));
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("ulimit -n")));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(waits->Send(ValidateBytes() + PingBytes(3)));
  EXPECT_EQ(waits->Read(4), rpc::LittleEndian32(3));
}

// Fault (store): A client writes more keys or bytes than the agent's PyTorch store holds -> Only
// its connection ends
TEST_F(TorchStoreServerTest, WhatIsTooMuchEndsTheConnectionThatAskedForIt) {
  TorchStoreServer::Options options;
  options.max_bytes = 3 << 20;
  Open(std::move(options));
  const auto keeps = Client(), client = Client();
  ASSERT_TRUE(
      keeps->Send(TextsRequest(TorchOp::kSet, {"/a", std::string(2 << 20, 'x')}) + PingBytes(2)));
  EXPECT_EQ(keeps->Read(4), rpc::LittleEndian32(2));
  // It is refused even before it is complete.
  client->Send(rpc::TorchOpByte(TorchOp::kSet) + rpc::TorchText("/b") +
               rpc::LittleEndian64(4 << 20) + std::string(2 << 20, 'y'));
  EXPECT_TRUE(client->IsClosed());
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("holds 3 MiB already")));
  ASSERT_TRUE(keeps->Send(TextsRequest(TorchOp::kDeleteKey, {"/a"})));
  EXPECT_EQ(keeps->Read(8), rpc::LittleEndian64(1));
  EXPECT_EQ(server_->held_bytes(), 0u);
}

// Fault (store): A client of the agent's PyTorch store does not read its answers -> The store stops
// reading from it, and the others are served without delay
TEST_F(TorchStoreServerTest, WhoDoesNotReadIsNotReadAndDelaysNobody) {
  Open();
  const auto lazy = Client(), other = Client();
  ASSERT_TRUE(
      other->Send(TextsRequest(TorchOp::kSet, {"/a", std::string(8 << 20, 'x')}) + PingBytes(2)));
  EXPECT_EQ(other->Read(4), rpc::LittleEndian32(2));
  const size_t stored = server_->held_bytes();
  // As many requests as the socket accepts: the server stops reading them.
  const std::string get = TextsRequest(TorchOp::kGet, {"/a"});
  size_t sent = 0;
  for (int refused = 0; refused < 100;) {
    if (send(lazy->fd(), get.data(), get.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
      ++sent;
      refused = 0;
    } else {
      ++refused;
    }
    server_->Serve(absl::ZeroDuration());
  }
  EXPECT_LT(server_->held_bytes(), stored + (4 << 20));
  ASSERT_TRUE(other->Send(PingBytes(3)));
  EXPECT_EQ(other->Read(4), rpc::LittleEndian32(3));
  // Once it reads, it has missed nothing.
  ASSERT_GT(sent, 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(lazy->Read(8), rpc::LittleEndian64(8 << 20));
    EXPECT_EQ(lazy->Read(8 << 20), std::string(8 << 20, 'x'));
  }
}

TEST_F(TorchStoreServerTest, StopEndsTheWaitsOfBefore) {
  TorchStoreServer::Options options;
  options.stop_timeout = absl::Milliseconds(20);
  Open(std::move(options));
  const auto waits = Client(), other = Client();
  ASSERT_TRUE(waits->Send(KeysRequest(TorchOp::kWait, {"/a"})));
  while (server_->held_bytes() == 0) server_->Serve(absl::Milliseconds(10));
  server_->StopWaits();
  EXPECT_TRUE(waits->IsClosed());
  // Later calls are served: programs save their state while they are stopped.
  ASSERT_TRUE(other->Send(KeysRequest(TorchOp::kWait, {"/b"})));
  const auto sets = Client();
  ASSERT_TRUE(sets->Send(TextsRequest(TorchOp::kSet, {"/b", ""})));
  EXPECT_EQ(other->Read(1), kZero);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(TorchStoreServerTest, ItsEndClosesAllConnections) {
  Open();
  const auto one = Client(), two = Client();
  ASSERT_TRUE(one->Send(NumberRequest(TorchOp::kBarrier, "/b", 3)));
  server_.reset();
  EXPECT_TRUE(one->IsClosed());
  EXPECT_TRUE(two->IsClosed());
}

TEST_F(TorchStoreServerTest, WakeEndsAServeThatWaits) {
  Open();
  server_->Wake();
  server_->Serve();
  EXPECT_EQ(server_->connections(), 0u);
}

std::string Say(const TorchRequest& request) {
  return absl::StrCat(static_cast<int>(request.op), "|", absl::StrJoin(request.keys, ","), "|",
                      absl::StrJoin(request.values, ","), "|", request.number);
}

// The requests parsed from the pieces, in order, or why parsing stopped.
absl::StatusOr<std::vector<std::string>> ReadAll(const std::vector<std::string>& pieces) {
  TorchRequestReader reader;
  std::vector<std::string> requests;
  for (const std::string& piece : pieces) {
    absl::string_view bytes = piece;
    while (!bytes.empty()) {
      TorchRequest request;
      const absl::StatusOr<bool> complete = reader.Read(&bytes, &request);
      if (!complete.ok()) return complete.status();
      EXPECT_TRUE(*complete || bytes.empty());
      if (*complete) requests.push_back(Say(request));
    }
  }
  EXPECT_EQ(reader.held_bytes(), 0u);
  return requests;
}

// One request of each opcode, and those without keys.
std::string EveryRequest() {
  return ValidateBytes() + PingBytes(0xFFFFFFFF) + TextsRequest(TorchOp::kSet, {"/a", "v"}) +
         TextsRequest(TorchOp::kSet, {"", ""}) +
         TextsRequest(TorchOp::kCompareSet, {"/a", "v", "w"}) +
         TextsRequest(TorchOp::kGet, {"/a"}) + NumberRequest(TorchOp::kAdd, "init/", -3) +
         KeysRequest(TorchOp::kCheck, {"/a", "/b"}) + KeysRequest(TorchOp::kWait, {}) +
         KeysRequest(TorchOp::kWait, {"/c"}) + rpc::TorchOpByte(TorchOp::kGetNumKeys) +
         TextsRequest(TorchOp::kDeleteKey, {"/a"}) +
         TextsRequest(TorchOp::kAppend, {"/a", std::string("\0x", 2)}) +
         KeysRequest(TorchOp::kMultiGet, {"/a", "", "/b"}) + rpc::TorchOpByte(TorchOp::kMultiSet) +
         rpc::LittleEndian64(2) + rpc::TorchText("/a") + rpc::TorchText("1") +
         rpc::TorchText("/b") + rpc::TorchText("") + rpc::TorchOpByte(TorchOp::kMultiSet) +
         rpc::LittleEndian64(0) + rpc::TorchOpByte(TorchOp::kCancelWait) +
         TextsRequest(TorchOp::kQueuePush, {"/q", "v"}) + TextsRequest(TorchOp::kQueuePop, {"/q"}) +
         TextsRequest(TorchOp::kQueueLen, {"/q"}) + rpc::TorchOpByte(TorchOp::kListKeys) +
         NumberRequest(TorchOp::kBarrier, "/b", 1000);
}

std::vector<std::string> EveryRequestInWords() {
  return {"0|||1015412686",
          "13|||4294967295",
          "1|/a|v|0",
          "1|||0",
          "2|/a|v,w|0",
          "3|/a||0",
          "4|init/||-3",
          "5|/a,/b||0",
          "6|||0",
          "6|/c||0",
          "7|||0",
          "8|/a||0",
          std::string("9|/a|\0x|0", 9),
          "10|/a,,/b||0",
          "11|/a,/b|1,|0",
          "11|||0",
          "12|||0",
          "14|/q|v|0",
          "15|/q||0",
          "16|/q||0",
          "17|||0",
          "18|/b||1000"};
}

TEST(TorchRequestReaderTest, EveryOpcode) {
  const auto requests = ReadAll({EveryRequest()});
  ASSERT_OK(requests);
  EXPECT_EQ(*requests, EveryRequestInWords());
}

TEST(TorchRequestReaderTest, ByteByByte) {
  std::vector<std::string> pieces;
  for (const char byte : EveryRequest()) pieces.push_back(std::string(1, byte));
  const auto requests = ReadAll(pieces);
  ASSERT_OK(requests);
  EXPECT_EQ(*requests, EveryRequestInWords());
}

TEST(TorchRequestReaderTest, InPiecesOfAnySize) {
  std::mt19937 random(7);
  const std::string all = EveryRequest();
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> pieces;
    for (size_t at = 0; at < all.size();) {
      const size_t size = 1 + random() % 40;
      pieces.push_back(all.substr(at, size));
      at += size;
    }
    const auto requests = ReadAll(pieces);
    ASSERT_OK(requests);
    ASSERT_EQ(*requests, EveryRequestInWords());
  }
}

// The reader accepts or refuses any input, and holds no more than came.
TEST(TorchRequestReaderTest, Garbage) {
  std::mt19937 random(11);
  for (int round = 0; round < 20000; ++round) {
    std::string garbage = round % 2 == 0 ? "" : EveryRequest();
    for (size_t i = 0; i < 64; ++i) garbage.push_back(static_cast<char>(random()));
    if (round % 2 != 0) garbage[random() % garbage.size()] ^= static_cast<char>(1 + random() % 255);
    TorchRequestReader reader;
    absl::string_view bytes = garbage;
    TorchRequest request;
    absl::StatusOr<bool> complete = true;
    while (complete.ok() && *complete && !bytes.empty()) {
      complete = reader.Read(&bytes, &request);
    }
    EXPECT_LE(reader.held_bytes(), 64 * garbage.size());
  }
}

TEST(TorchRequestReaderTest, UnknownOpcodeIsRefused) {
  for (const int opcode : {19, 42, 255}) {
    EXPECT_THAT(
        ReadAll({std::string(1, static_cast<char>(opcode))}),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(absl::StrCat("opcode ", opcode))));
  }
}

TEST(TorchRequestReaderTest, LengthsOverTheLimitsAreRefusedBeforeTheirBytesCome) {
  const auto begins = [](TorchOp op, uint64_t number) {
    return ReadAll({rpc::TorchOpByte(op) + rpc::LittleEndian64(number)}).status();
  };
  EXPECT_THAT(begins(TorchOp::kGet, kMaxTorchKeyBytes + 1), Not(IsOk()));
  EXPECT_THAT(begins(TorchOp::kGet, UINT64_MAX), Not(IsOk()));
  EXPECT_THAT(begins(TorchOp::kWait, kMaxTorchKeysPerCall + 1), Not(IsOk()));
  EXPECT_THAT(begins(TorchOp::kMultiSet, UINT64_MAX), Not(IsOk()));
  const std::string set = rpc::TorchOpByte(TorchOp::kSet) + rpc::TorchText("/a");
  EXPECT_THAT(ReadAll({set + rpc::LittleEndian64(kMaxTorchValueBytes + 1)}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("8388608")));
}

TEST(TorchRequestReaderTest, WhatIsAtTheLimitsIsTaken) {
  const std::string key(kMaxTorchKeyBytes, 'k'), value(kMaxTorchValueBytes, 'v');
  const auto set = ReadAll({TextsRequest(TorchOp::kSet, {key, value})});
  ASSERT_OK(set);
  EXPECT_THAT(*set, ElementsAre(absl::StrCat("1|", key, "|", value, "|0")));
  EXPECT_OK(ReadAll(
      {KeysRequest(TorchOp::kCheck, std::vector<std::string>(kMaxTorchKeysPerCall, "/k"))}));
}

TEST(TorchRequestReaderTest, ARequestHasALimitAsAWhole) {
  const std::string value(kMaxTorchValueBytes, 'v');
  std::string begun = rpc::TorchOpByte(TorchOp::kMultiSet) + rpc::LittleEndian64(100);
  for (int i = 0; i < 8; ++i) begun += rpc::TorchText("/k") + rpc::TorchText(value);
  EXPECT_THAT(ReadAll({begun}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("64 MiB")));
}

TEST(TorchRequestReaderTest, HoldsNoMoreThanCame) {
  TorchRequestReader reader;
  const std::string begun =
      rpc::TorchOpByte(TorchOp::kSet) + rpc::LittleEndian64(kMaxTorchKeyBytes) + "abc";
  absl::string_view bytes = begun;
  TorchRequest request;
  const auto complete = reader.Read(&bytes, &request);
  ASSERT_OK(complete);
  EXPECT_FALSE(*complete);
  EXPECT_THAT(bytes, IsEmpty());
  EXPECT_LE(reader.held_bytes(), 3 + sizeof(std::string));
}

class AnswerQueueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    mine_.Reset(ends[0]);
    theirs_.Reset(ends[1]);
  }
  std::string Received() {
    std::string all;
    char buffer[4096];
    for (ssize_t got = 0; (got = recv(theirs_.get(), buffer, sizeof(buffer), 0)) > 0;) {
      all.append(buffer, static_cast<size_t>(got));
    }
    return all;
  }
  SharedText Value(std::string text) {
    return std::make_shared<CountedText>(std::move(text), &budget_);
  }

  ByteBudget budget_{64 << 20};
  ScopedFd mine_, theirs_;
};

TEST_F(AnswerQueueTest, InOrder) {
  AnswerQueue queue(&budget_);
  EXPECT_TRUE(queue.Add("a", nullptr));
  EXPECT_TRUE(queue.Add("b", Value("value")));
  EXPECT_TRUE(queue.Add("c", nullptr));
  EXPECT_EQ(queue.unread_bytes(), 8u);
  EXPECT_TRUE(queue.SendTo(mine_.get()));
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.unread_bytes(), 0u);
  EXPECT_EQ(budget_.held(), 0u);
  EXPECT_EQ(Received(), "abvaluec");
}

TEST_F(AnswerQueueTest, AReaderThatIsSlow) {
  AnswerQueue queue(&budget_);
  std::string expected;
  for (int i = 0; i < 300; ++i) {
    const std::string text(10007 + i, static_cast<char>('a' + i % 26));
    ASSERT_TRUE(queue.Add(std::to_string(i), i % 3 == 0 ? nullptr : Value(text)));
    expected += std::to_string(i) + (i % 3 == 0 ? "" : text);
  }
  std::string received;
  while (!queue.empty()) {
    ASSERT_TRUE(queue.SendTo(mine_.get()));
    received += Received();
  }
  EXPECT_EQ(received, expected);
  EXPECT_EQ(budget_.held(), 0u);
}

TEST_F(AnswerQueueTest, WithoutRoomAndWithoutReader) {
  ByteBudget small(100);
  AnswerQueue queue(&small);
  EXPECT_FALSE(queue.Add(std::string(101, 'x'), nullptr));
  EXPECT_TRUE(queue.empty());
  EXPECT_TRUE(queue.Add("x", nullptr));
  theirs_.Reset();
  EXPECT_FALSE(queue.SendTo(mine_.get()));
}

TEST_F(AnswerQueueTest, WhatIsNeverReadIsGivenBack) {
  {
    AnswerQueue queue(&budget_);
    EXPECT_TRUE(queue.Add("x", Value("y")));
  }
  EXPECT_EQ(budget_.held(), 0u);
}

sockaddr_storage Peer(const char* address) {
  sockaddr_storage storage = {};
  auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
  v4.sin_family = AF_INET;
  v4.sin_port = htons(1234);
  if (inet_pton(AF_INET, address, &v4.sin_addr) == 1) return storage;
  storage = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_scope_id = 3;
  EXPECT_EQ(inet_pton(AF_INET6, address, &v6.sin6_addr), 1) << address;
  return storage;
}

TEST(NodeAddressesTest, NodesAloneAreTaken) {
  const auto nodes = NodeAddresses::Make("10.0.0.1", {"10.0.0.1", "10.0.0.2", "fe80::1%eth0"});
  ASSERT_OK(nodes);
  for (const char* address : {"10.0.0.1", "10.0.0.2", "::ffff:10.0.0.2", "fe80::1"}) {
    EXPECT_TRUE(nodes->Has(Peer(address))) << address;
  }
  for (const char* address : {"10.0.0.3", "127.0.0.1", "::1", "fe80::2", "::10.0.0.1"}) {
    EXPECT_FALSE(nodes->Has(Peer(address))) << address;
  }
  EXPECT_FALSE(nodes->Has(sockaddr_storage()));
}

TEST(NodeAddressesTest, NodesOfOneMachine) {
  const auto nodes = NodeAddresses::Make("127.0.0.1", {"127.0.0.1"});
  ASSERT_OK(nodes);
  EXPECT_TRUE(nodes->Has(Peer("127.0.0.1")));
  EXPECT_FALSE(nodes->Has(Peer("127.0.0.2")));
}

TEST(NodeAddressesTest, WhatDoesNotTellIsSaid) {
  EXPECT_THAT(NodeAddresses::Make("head", {}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("\"head\"")));
  EXPECT_THAT(NodeAddresses::Make("10.0.0.1", {"node2.cluster"}), Not(IsOk()));
  EXPECT_THAT(NodeAddresses::Make("10.0.0.1", {""}), Not(IsOk()));
  EXPECT_THAT(NodeAddresses::Make("10.0.0.1", {"127.0.0.1"}), Not(IsOk()));
  EXPECT_THAT(NodeAddresses::Make("::2", {"::1"}), Not(IsOk()));
}

TEST(NodeAddressesTest, InWords) {
  EXPECT_EQ(AddressText(Peer("10.0.0.1")), "10.0.0.1");
  EXPECT_EQ(AddressText(Peer("::ffff:10.0.0.1")), "10.0.0.1");
  EXPECT_EQ(AddressText(Peer("fe80::1")), "fe80::1");
  EXPECT_EQ(AddressText(sockaddr_storage()), "?");
}

TEST(ByteBudgetTest, FitsUpToTheLimitAndNoFurther) {
  ByteBudget budget(10);
  EXPECT_TRUE(budget.Fits(10));
  EXPECT_FALSE(budget.Fits(11));
  EXPECT_FALSE(budget.Fits(SIZE_MAX));
  budget.Take(4);
  EXPECT_TRUE(budget.Fits(6));
  EXPECT_FALSE(budget.Fits(7));
  budget.Give(4);
  EXPECT_EQ(budget.held(), 0u);
}

TEST(ByteBudgetTest, AValueCountsForAsLongAsSomebodyRefersToIt) {
  ByteBudget budget(100);
  auto value = std::make_shared<CountedText>("12345", &budget);
  const SharedText reader = value;
  value->Append("67");
  EXPECT_EQ(reader->text(), "1234567");
  value = nullptr;
  EXPECT_EQ(budget.held(), 7u);
}

}  // namespace
}  // namespace cadre::agent
