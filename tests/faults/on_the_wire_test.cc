// What can be read off the network between two ranks that no launcher of ours started: the store
// that rank 0 serves, collectives and messages. Needs root, for a network of its own.
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/scoped_fd.h"
#include "base/status_matchers.h"
#include "cadre/connect.h"
#include "cadre/status_macros.h"
#include "cadre/worker.h"
#include "tests/testing/node_network.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);
// In a network that nobody else is in.
constexpr char kAddress[] = "127.0.0.1:29400";
constexpr char kInStore[] = "MARKER OF THE STORE";
constexpr char kInCollective[] = "MARKER OF A COLLECTIVE";
constexpr char kInMessage[] = "MARKER OF A MESSAGE";
// Where the ranks leave the key of their connections in the store.
constexpr char kKeyName[] = "sockets/";

Status Play(int rank) {
  WorkerOptions place;
  place.rank = rank;
  place.world_size = 2;
  place.address = kAddress;
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Connect(place));
  if (rank == 1) CADRE_RETURN_IF_ERROR(worker->Set("key", kInStore));
  CADRE_ASSIGN_OR_RETURN(const auto communicator, ConnectCommunicator(*worker, {}));
  std::string text = kInCollective;
  CADRE_RETURN_IF_ERROR(
      communicator->Broadcast({text.data(), text.size(), DataType::kUint8}, 0)->Wait(kLong));
  text = kInMessage;
  const Buffer message = {text.data(), text.size(), DataType::kUint8};
  CADRE_RETURN_IF_ERROR(
      (rank == 0 ? communicator->Send(message, 1, 0) : communicator->Receive(message, 0, 0))
          ->Wait(kLong));
  CADRE_RETURN_IF_ERROR(communicator->Barrier()->Wait(kLong));
  return OkStatus();
}

// Everything that goes over loopback.
ScopedFd Listen() {
  ScopedFd wire(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_ALL)));
  EXPECT_TRUE(wire.ok());
  const int room = 64 << 20;
  EXPECT_EQ(setsockopt(wire.get(), SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)), 0);
  sockaddr_ll loopback = {};
  loopback.sll_family = AF_PACKET;
  loopback.sll_protocol = htons(ETH_P_ALL);
  loopback.sll_ifindex = static_cast<int>(if_nametoindex("lo"));
  EXPECT_EQ(bind(wire.get(), reinterpret_cast<const sockaddr*>(&loopback), sizeof(loopback)), 0);
  return wire;
}

std::string Overheard(const ScopedFd& wire) {
  std::string all;
  std::vector<char> packet(1 << 17);
  while (true) {
    const ssize_t bytes = recv(wire.get(), packet.data(), packet.size(), 0);
    if (bytes < 0) return all;
    all.append(packet.data(), static_cast<size_t>(bytes));
  }
}

class OnTheWireTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { entered_ = NodeNetwork::Enter(); }
  void SetUp() override {
    if (absl::IsPermissionDenied(entered_)) GTEST_SKIP() << entered_.message();
    ASSERT_OK(entered_);
    setenv("CADRE_CPU_BACKEND", "sockets", 1);
    setenv("XDG_RUNTIME_DIR", MakeTempDir("run").c_str(), 1);
  }

  std::string Run() {
    const ScopedFd wire = Listen();
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.push_back(fork());
      if (ranks.back() != 0) continue;
      const Status status = Play(rank);
      if (!status.ok()) fprintf(stderr, "rank %d: %s\n", rank, status.ToString().c_str());
      _exit(status.ok() ? 0 : 1);
    }
    for (const pid_t rank : ranks) {
      int status = 0;
      EXPECT_EQ(waitpid(rank, &status, 0), rank);
      EXPECT_EQ(status, 0);
    }
    return Overheard(wire);
  }

  static absl::Status entered_;
};
absl::Status OnTheWireTest::entered_;

TEST_F(OnTheWireTest, InClearEverythingCanBeRead) {
  unsetenv("CADRE_ENCRYPT");
  const std::string overheard = Run();
  for (const char* const marker : {kInStore, kInCollective, kInMessage, kKeyName}) {
    EXPECT_TRUE(absl::StrContains(overheard, marker)) << marker;
  }
}

// Fault (access): A third party reads the network between ranks that use `--encrypt` -> No data of
// the store, of collectives or of messages can be read
TEST_F(OnTheWireTest, EncryptedNothingCan) {
  setenv("CADRE_ENCRYPT", "1", 1);
  const std::string overheard = Run();
  EXPECT_GT(overheard.size(), 1000);
  EXPECT_FALSE(absl::StrContains(overheard, "MARKER"));
  // Nor the key by which the ranks' connections are encrypted, which the store gives.
  EXPECT_FALSE(absl::StrContains(overheard, kKeyName));
}

}  // namespace
}  // namespace cadre
