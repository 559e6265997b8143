#include "tests/soak/relay.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

namespace cadre {
namespace {

constexpr int kBacklog = 64;
constexpr size_t kBufferBytes = 64 << 10;

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Closing then sends a reset instead of an orderly end.
void CloseHard(int fd) {
  const linger hard = {1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
  close(fd);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Relay>> Relay::Start(int target_port) {
  std::unique_ptr<Relay> relay(new Relay);
  relay->target_port_ = target_port;
  relay->wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  relay->listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (relay->wake_ < 0 || relay->listener_ < 0 ||
      bind(relay->listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(relay->listener_, kBacklog) != 0 ||
      getsockname(relay->listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return absl::ErrnoToStatus(errno, "relay");
  }
  relay->port_ = ntohs(address.sin_port);
  relay->thread_ = std::thread([raw = relay.get()] { raw->Run(); });
  return relay;
}

Relay::~Relay() {
  stop_ = true;
  if (wake_ >= 0) eventfd_write(wake_, 1);
  if (thread_.joinable()) thread_.join();
  if (listener_ >= 0) close(listener_);
  if (wake_ >= 0) close(wake_);
}

void Relay::DropConnections() {
  drop_ = true;
  eventfd_write(wake_, 1);
}

void Relay::Accept() {
  const int down = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (down < 0) return;
  // On loopback a connection is there or refused at once, so that this one may block.
  const int up = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(target_port_);
  if (up < 0 || connect(up, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (up >= 0) close(up);
    CloseHard(down);
    return;
  }
  connections_.push_back({{down, up, ""}, {up, down, ""}});
}

void Relay::CloseAll() {
  for (const Connection& connection : connections_) {
    CloseHard(connection.up.from);
    CloseHard(connection.up.to);
  }
  connections_.clear();
}

bool Relay::Move(Way& way, short from_events, short to_events) {
  if (way.pending.empty() && (from_events & (POLLIN | POLLHUP | POLLERR)) != 0) {
    way.pending.resize(kBufferBytes);
    const ssize_t got = recv(way.from, way.pending.data(), kBufferBytes, MSG_DONTWAIT);
    way.pending.resize(got > 0 ? got : 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
  }
  if (way.pending.empty() || (to_events & (POLLOUT | POLLERR)) == 0) return true;
  const ssize_t put =
      send(way.to, way.pending.data(), way.pending.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (put < 0) return errno == EAGAIN || errno == EINTR;
  way.pending.erase(0, put);
  return true;
}

void Relay::Run() {
  while (!stop_) {
    std::vector<pollfd> fds = {{listener_, POLLIN, 0}, {wake_, POLLIN, 0}};
    for (const Connection& c : connections_) {
      const auto events = [](const Way& in, const Way& out) {
        return static_cast<short>((in.pending.empty() ? POLLIN : 0) |
                                  (out.pending.empty() ? 0 : POLLOUT));
      };
      fds.push_back({c.up.from, events(c.up, c.down), 0});
      fds.push_back({c.up.to, events(c.down, c.up), 0});
    }
    if (poll(fds.data(), fds.size(), -1) < 0) continue;
    eventfd_t ignored;
    if (fds[1].revents != 0) eventfd_read(wake_, &ignored);
    if (drop_.exchange(false)) {
      CloseAll();
      continue;
    }
    size_t i = 2;
    for (auto c = connections_.begin(); c != connections_.end(); i += 2) {
      const short down = fds[i].revents, up = fds[i + 1].revents;
      if (Move(c->up, down, up | POLLOUT) && Move(c->down, up, down | POLLOUT)) {
        ++c;
        continue;
      }
      close(c->up.from);
      close(c->up.to);
      c = connections_.erase(c);
    }
    if (fds[0].revents != 0) Accept();
  }
  CloseAll();
}

}  // namespace cadre
