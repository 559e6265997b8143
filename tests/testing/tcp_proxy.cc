#include "tests/testing/tcp_proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

constexpr size_t kPieceBytes = 16 << 10;
// The most pieces of data that are under way in one direction of a connection.
constexpr size_t kPieces = 64;

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

struct Piece {
  absl::Time due;
  std::string bytes;  // none: the end
};

}  // namespace

// An end has the number of the direction that comes from it: 0 is the client's.
struct TcpProxy::Connection {
  ScopedFd ends[2];
  std::deque<Piece> pieces[2];
  bool ended[2] = {};
};

TcpProxy::TcpProxy(int server_port) : server_port_(server_port) {
  listener_.Listen();
  int pipes[2];
  EXPECT_EQ(pipe2(pipes, O_CLOEXEC | O_NONBLOCK), 0);
  wake_ = ScopedFd(pipes[0]);
  waker_ = ScopedFd(pipes[1]);
  thread_ = std::thread([this] { Serve(); });
}

TcpProxy::~TcpProxy() {
  {
    const absl::MutexLock lock(&mutex_);
    over_ = true;
  }
  Wake();
  thread_.join();
}

void TcpProxy::Hold(Direction direction, bool held) {
  {
    const absl::MutexLock lock(&mutex_);
    held_[direction] = held;
  }
  Wake();
}

void TcpProxy::Delay(absl::Duration delay) {
  const absl::MutexLock lock(&mutex_);
  delay_ = delay;
}

void TcpProxy::Lose(Direction direction) {
  const absl::MutexLock lock(&mutex_);
  lost_[direction] = true;
}

void TcpProxy::Reset() {
  {
    const absl::MutexLock lock(&mutex_);
    reset_ = true;
  }
  Wake();
  const absl::MutexLock lock(&mutex_);
  const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !reset_; };
  mutex_.Await(absl::Condition(&done));
}

int64_t TcpProxy::arrived(Direction direction) const {
  const absl::MutexLock lock(&mutex_);
  return arrived_[direction];
}

bool TcpProxy::AwaitArrived(Direction direction, int64_t more_than, absl::Duration timeout) const {
  const absl::MutexLock lock(&mutex_);
  const auto come = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return arrived_[direction] > more_than;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&come), timeout);
}

void TcpProxy::Wake() const { [[maybe_unused]] const ssize_t n = write(waker_.get(), "w", 1); }

void TcpProxy::Accept() {
  Connection made;
  made.ends[0] = ScopedFd(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  made.ends[1] = ScopedFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(server_port_);
  // The server does not listen; the client sees its connection end.
  if (connect(made.ends[1].get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) !=
      0) {
    return;
  }
  const int on = 1;
  for (const ScopedFd& end : made.ends) {
    setsockopt(end.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    fcntl(end.get(), F_SETFL, O_NONBLOCK);
  }
  connections_.push_back(std::move(made));
}

bool TcpProxy::Read(Connection& connection, int direction, absl::Time now) {
  std::string bytes(kPieceBytes, '\0');
  const ssize_t n = recv(connection.ends[direction].get(), bytes.data(), bytes.size(), 0);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  bytes.resize(static_cast<size_t>(n));
  const absl::MutexLock lock(&mutex_);
  if (bytes.empty()) connection.ended[direction] = true;
  if (!lost_[direction]) connection.pieces[direction].push_back({now + delay_, std::move(bytes)});
  return true;
}

bool TcpProxy::Move(Connection& connection, absl::Time now, absl::Time* next) {
  for (const int direction : {0, 1}) {
    std::deque<Piece>& pieces = connection.pieces[direction];
    const int to = connection.ends[1 - direction].get();
    while (!pieces.empty()) {
      Piece& piece = pieces.front();
      if (piece.due > now) {
        *next = std::min(*next, piece.due);
        break;
      }
      if (piece.bytes.empty()) {
        shutdown(to, SHUT_WR);
        pieces.pop_front();
        continue;
      }
      const ssize_t n = send(to, piece.bytes.data(), piece.bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN) return false;
      if (n < 0) {
        // The receiver reads slowly; polling is good enough, because tests do not measure that.
        *next = std::min(*next, now + absl::Milliseconds(2));
        break;
      }
      {
        const absl::MutexLock lock(&mutex_);
        arrived_[direction] += n;
      }
      piece.bytes.erase(0, static_cast<size_t>(n));
      if (piece.bytes.empty()) pieces.pop_front();
    }
  }
  return !(connection.ended[0] && connection.ended[1] && connection.pieces[0].empty() &&
           connection.pieces[1].empty());
}

void TcpProxy::EndAll() {
  for (Connection& connection : connections_) {
    for (const ScopedFd& end : connection.ends) {
      const linger at_once = {1, 0};
      setsockopt(end.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    }
  }
  connections_.clear();
  lost_[0] = lost_[1] = reset_ = false;
}

void TcpProxy::Serve() {
  for (;;) {
    bool held[2];
    {
      const absl::MutexLock lock(&mutex_);
      if (over_) return;
      if (reset_) EndAll();
      std::copy(std::begin(held_), std::end(held_), held);
    }
    absl::Time now = absl::Now(), next = now + absl::Seconds(1);
    for (auto at = connections_.begin(); at != connections_.end();) {
      at = Move(*at, now, &next) ? std::next(at) : connections_.erase(at);
    }
    std::vector<pollfd> looks = {{wake_.get(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
    std::vector<std::pair<Connection*, int>> of;
    for (Connection& connection : connections_) {
      for (const int direction : {0, 1}) {
        if (held[direction] || connection.ended[direction] ||
            connection.pieces[direction].size() >= kPieces) {
          continue;
        }
        looks.push_back({connection.ends[direction].get(), POLLIN, 0});
        of.emplace_back(&connection, direction);
      }
    }
    const int64_t wait = absl::ToInt64Milliseconds(next - now) + 1;
    poll(looks.data(), looks.size(), static_cast<int>(std::max<int64_t>(wait, 0)));
    now = absl::Now();
    char bytes[64];
    while (read(wake_.get(), bytes, sizeof(bytes)) > 0) {
    }
    std::vector<Connection*> broken;
    for (size_t i = 0; i < of.size(); ++i) {
      if (looks[i + 2].revents == 0) continue;
      if (!Read(*of[i].first, of[i].second, now)) broken.push_back(of[i].first);
    }
    connections_.remove_if([&](const Connection& connection) {
      return std::find(broken.begin(), broken.end(), &connection) != broken.end();
    });
    if (looks[1].revents != 0) Accept();
  }
}

}  // namespace cadre
