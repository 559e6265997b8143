#include "worker_runtime/launched/torch_store.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <map>
#include <thread>

#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/sockets/endpoint.h"

namespace cadre::launched {
namespace {

using ::testing::HasSubstr;

constexpr size_t kLimit = 100;

// The other side of one connection, on a thread of its own.
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

// As PyTorch's does, as far as this client asks.
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

// It takes the first byte for SET, and what follows for a key's length.
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
  // Full of what nobody takes: it accepts nobody.
  const auto listener = sockets::Listen("127.0.0.1");
  ASSERT_OK(listener);
  const MonoTime start = MonoNow();
  EXPECT_THAT(TorchStore::Connect(sockets::EndpointOf(*listener)),
              StatusIs(StatusCode::kUnavailable, HasSubstr("no answer within 5s")));
  EXPECT_LT(MonoNow() - start, 2 * TorchStore::kAnswerPatience);
}

}  // namespace
}  // namespace cadre::launched
