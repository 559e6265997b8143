#include "worker_runtime/launched/meeting_place.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/sockets/tcp_socket.h"

namespace cadre::launched {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const environment::Secret kOwn = {"0123456789abcdef", false};
const environment::Secret kShared = {"0123456789abcdef", true};
// An address that is reserved for documentation, so no host has it.
constexpr char kElsewhere[] = "192.0.2.1";

TEST(AddressMeetingTest, WithoutASharedSecretEverythingStaysOnLoopback) {
  for (const char* host : {"127.0.0.1", "localhost", "::1", "127.0.1.1"}) {
    const auto meeting = MeetAtAddress({host, 0}, kOwn, std::nullopt);
    ASSERT_OK(meeting);
    const auto store_listener = (*meeting)->Open();
    ASSERT_OK(store_listener);
    EXPECT_THAT(sockets::EndpointOf(store_listener->listener), StartsWith("127.0.0.1:")) << host;
    const auto at = (*meeting)->Find();
    ASSERT_OK(at);
    EXPECT_EQ(at->endpoint, "127.0.0.1:0");
    EXPECT_EQ(at->key, store_listener->key);
    EXPECT_THAT((*meeting)->Advice(), HasSubstr("CADRE_SECRET_FILE"));
  }
}

TEST(AddressMeetingTest, RanksOfSeveralMachinesNeedASharedSecret) {
  EXPECT_THAT(MeetAtAddress({kElsewhere, 29500}, kOwn, std::nullopt),
              StatusIs(StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("CADRE_SECRET_FILE is not set"), HasSubstr(kElsewhere),
                             HasSubstr("cadre token new FILE"))));
  // An address of rank 0's own machine, when several nodes are known to take part.
  EXPECT_THAT(MeetAtAddress({"0.0.0.0", 29500}, kOwn, false),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("several nodes")));
  // Several launchers may run on one machine.
  EXPECT_OK(MeetAtAddress({"127.0.0.1", 29500}, kOwn, false));
}

TEST(AddressMeetingTest, WithOneRankZeroListensExactlyThere) {
  const auto meeting = MeetAtAddress({"127.0.0.1", 0}, kShared, std::nullopt);
  ASSERT_OK(meeting);
  const auto store_listener = (*meeting)->Open();
  ASSERT_OK(store_listener);
  EXPECT_THAT(sockets::EndpointOf(store_listener->listener), StartsWith("127.0.0.1:"));
  EXPECT_EQ((*meeting)->Advice(), "");
}

// In some clusters a name is known only once its machine runs.
TEST(AddressMeetingTest, ANameThatIsNotKnownYetIsAskedForAgain) {
  const auto meeting = MeetAtAddress({"no such host", 29500}, kShared, std::nullopt);
  ASSERT_OK(meeting);
  EXPECT_THAT((*meeting)->Find(),
              StatusIs(StatusCode::kNotFound, HasSubstr("no address is known for 'no such host'")));
}

TEST(AddressMeetingTest, AnAddressThatLeadsHereFromElsewhereIsServedAtAll) {
  const auto listener = ListenAsHost(kElsewhere, 0);
  ASSERT_OK(listener);
  EXPECT_THAT(sockets::AddressOf(listener->get()), ::testing::AnyOf("::", "0.0.0.0"));
}

TEST(AddressMeetingTest, APortThatIsTakenIsNamed) {
  const auto other = sockets::Listen("127.0.0.1");
  ASSERT_OK(other);
  const std::string endpoint = sockets::EndpointOf(*other);
  const auto port = static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.find(':') + 1)));
  for (const environment::Secret& secret : {kOwn, kShared}) {
    const auto meeting = MeetAtAddress({"127.0.0.1", port}, secret, true);
    ASSERT_OK(meeting);
    EXPECT_THAT((*meeting)->Open(),
                StatusIs(StatusCode::kUnavailable,
                         AllOf(HasSubstr(endpoint), HasSubstr("Address already in use"))));
  }
}

constexpr size_t kLimit = 100;

// The other side of one connection, on a separate thread.
class Peer {
 public:
  explicit Peer(std::function<void(Peer&)> serve) : listener_(*sockets::Listen("127.0.0.1")) {
    fcntl(listener_.get(), F_SETFL, 0);
    thread_ = std::thread([this, serve] {
      socket_ = ScopedFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      serve(*this);
      socket_.Reset();
    });
  }
  ~Peer() { thread_.join(); }
  std::string endpoint() const { return sockets::EndpointOf(listener_); }

  // Empty at the end of the connection.
  std::string Read(size_t size) {
    std::string bytes(size, '\0');
    const ssize_t got = recv(socket_.get(), &bytes[0], size, MSG_WAITALL);
    return got == static_cast<ssize_t>(size) ? bytes : "";
  }
  template <typename T>
  T ReadNumber() {
    T number = 0;
    const std::string bytes = Read(sizeof(T));
    if (!bytes.empty()) memcpy(&number, bytes.data(), sizeof(T));
    return number;
  }
  std::string ReadText() {
    const auto size = ReadNumber<uint64_t>();
    return size == 0 || size > kLimit ? "" : Read(size);
  }
  void Write(const std::string& bytes) {
    EXPECT_EQ(send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  template <typename T>
  void WriteNumber(T number) {
    Write(std::string(reinterpret_cast<const char*>(&number), sizeof(T)));
  }

 private:
  ScopedFd listener_;
  ScopedFd socket_;
  std::thread thread_;
};

// Serves like PyTorch's store, as far as this client uses it.
void ServeStore(Peer& peer) {
  std::map<std::string, std::string> store;
  while (true) {
    const std::string opcode = peer.Read(1);
    if (opcode.empty()) return;
    if (opcode[0] == 0) {
      EXPECT_EQ(peer.ReadNumber<uint32_t>(), 0x3C85F7CEu);
    } else if (opcode[0] == 13) {
      peer.WriteNumber(peer.ReadNumber<uint32_t>());
    } else if (opcode[0] == 1) {
      const std::string key = peer.ReadText();
      store[key] = peer.ReadText();
    } else if (opcode[0] == 5) {
      EXPECT_EQ(peer.ReadNumber<uint64_t>(), 1u);
      peer.WriteNumber<uint8_t>(store.count(peer.ReadText()) == 0 ? 1 : 0);
    } else if (opcode[0] == 3) {
      const std::string value = store[peer.ReadText()];
      peer.WriteNumber<uint64_t>(value.size());
      peer.Write(value);
    } else {
      ADD_FAILURE() << "opcode " << int{opcode[0]};
    }
  }
}

TEST(TorchStoreTest, WhatIsSetCanBeRead) {
  Peer peer(ServeStore);
  auto store = TorchStore::Connect(peer.endpoint());
  ASSERT_OK(store);
  EXPECT_EQ(store->local_address(), "127.0.0.1");
  auto value = store->Get("/key", kLimit);
  ASSERT_OK(value);
  EXPECT_EQ(*value, std::nullopt);
  EXPECT_OK(store->Set("/key", "10.0.0.1 80 word"));
  value = store->Get("/key", kLimit);
  ASSERT_OK(value);
  EXPECT_EQ(*value, "10.0.0.1 80 word");
  EXPECT_THAT(store->Get("/key", 3), StatusIs(StatusCode::kInternal));
}

// An older store takes the first byte for SET, and the following ones for a key's length.
TEST(TorchStoreTest, AnOlderStoreFindsALengthThatItRefusesAtOnce) {
  Peer peer([](Peer& peer) {
    EXPECT_EQ(peer.Read(1), std::string(1, '\0'));
    EXPECT_GT(peer.ReadNumber<uint64_t>(), uint64_t{1} << 63);
  });
  EXPECT_THAT(TorchStore::Connect(peer.endpoint()), StatusIs(StatusCode::kUnavailable));
}

TEST(TorchStoreTest, AnotherServerIsNotBelieved) {
  Peer peer([](Peer& peer) { peer.Write("HTTP/1.1 400 Bad Request\r\n"); });
  EXPECT_THAT(TorchStore::Connect(peer.endpoint()),
              StatusIs(StatusCode::kUnavailable, HasSubstr("\"HTTP\"")));
}

TEST(TorchStoreTest, OneThatSaysNothingIsNotWaitedForLong) {
  // Nothing accepts connections from this listener.
  const auto listener = sockets::Listen("127.0.0.1");
  ASSERT_OK(listener);
  const MonoTime start = MonoNow();
  EXPECT_THAT(TorchStore::Connect(sockets::EndpointOf(*listener)),
              StatusIs(StatusCode::kUnavailable, HasSubstr("no answer within 5s")));
  EXPECT_LT(MonoNow() - start, 2 * TorchStore::kAnswerTimeout);
}

}  // namespace

}  // namespace cadre::launched
