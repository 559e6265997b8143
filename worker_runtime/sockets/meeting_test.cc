#include "worker_runtime/sockets/meeting.h"

#include <chrono>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status_matchers.h"
#include "worker_runtime/sockets/endpoint.h"
#include "worker_runtime/sockets/message_channel.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::sockets {
namespace {

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

PairMeeting PairOf(Worker& worker) {
  return {"pair", worker.rank(), MonoNow() + kLong, [] { return OkStatus(); },
          [&worker](const std::string& key) { return worker.Get(key, kLong); }};
}

// As many as may wait there, and more, who came before the other of the pair and say nothing.
std::vector<ScopedFd> StrangersAt(const std::string& endpoint) {
  std::vector<ScopedFd> strangers;
  for (size_t i = 0; i < kMaxStrangers + 20; ++i) {
    auto socket = StartConnecting(endpoint);
    EXPECT_OK(socket);
    if (socket.ok()) strangers.push_back(*std::move(socket));
  }
  return strangers;
}

TEST(MeetingTest, StrangersWhoComeFirstDelayNoPair) {
  testing::InProcessWorkers workers(2);
  workers.Run([](Worker& worker) {
    std::vector<ScopedFd> strangers;
    if (worker.rank() == 1) {
      const auto endpoint = worker.Get("pair/0", kLong);
      ASSERT_OK(endpoint);
      strangers = StrangersAt(*endpoint);
    }
    const MonoTime start = MonoNow();
    const auto connection = MeetPair(worker, PairOf(worker));
    ASSERT_OK(connection);
    EXPECT_LT(MonoNow() - start, kHandshakePatience / 2);
    const MessageChannel channel(*connection, worker.rank(), 1 - worker.rank());
    std::vector<float> sent = {1, 2}, got(2);
    const MonoTime deadline = MonoNow() + kLong;
    EXPECT_OK(channel.Send({sent.data(), 2, DataType::kFloat32}, 0, deadline));
    EXPECT_OK(channel.Receive({got.data(), 2, DataType::kFloat32}, 0, deadline));
    EXPECT_EQ(got, sent);
  });
}

}  // namespace
}  // namespace cadre::sockets
