#include "bench/collectives/socket_loop.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

constexpr std::chrono::nanoseconds kTimeout = std::chrono::minutes(1);
constexpr int kPollMillis = 60000;

sockaddr_in AddressOf(const std::string& address, int port) {
  sockaddr_in parsed = {};
  parsed.sin_family = AF_INET;
  parsed.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, address.c_str(), &parsed.sin_addr);
  return parsed;
}

Result<ScopedFd> Accept(Worker& worker) {
  const ScopedFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in own = AddressOf(worker.place().address, 0);
  socklen_t bytes = sizeof(own);
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  if (bind(listener.get(), address, bytes) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), address, &bytes) != 0) {
    return ErrnoToStatus(errno, "listening");
  }
  RETURN_IF_ERROR(
      worker.Set("loop", absl::StrCat(worker.place().address, " ", ntohs(own.sin_port))));
  ScopedFd socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket.ok()) return ErrnoToStatus(errno, "accept");
  return socket;
}

Result<ScopedFd> Call(Worker& worker) {
  ASSIGN_OR_RETURN(const std::string where, worker.Get("loop", kTimeout));
  const size_t space = where.find(' ');
  int port = 0;
  if (space == std::string::npos || !absl::SimpleAtoi(where.substr(space + 1), &port)) {
    return InternalError(where);
  }
  ScopedFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in other = AddressOf(where.substr(0, space), port);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&other), sizeof(other)) != 0) {
    return ErrnoToStatus(errno, where);
  }
  return socket;
}

}  // namespace

Result<SocketLoop> SocketLoop::Connect(Worker& worker, Wait wait) {
  ASSIGN_OR_RETURN(ScopedFd socket, worker.rank() == 0 ? Accept(worker) : Call(worker));
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  return SocketLoop(std::move(socket), worker.rank(), wait);
}

Status SocketLoop::Exchange(const void* send, size_t send_bytes, void* receive,
                            size_t receive_bytes) {
  const char* out = static_cast<const char*>(send);
  char* in = static_cast<char*>(receive);
  while (send_bytes > 0 || receive_bytes > 0) {
    bool moved = false;
    if (send_bytes > 0) {
      const ssize_t sent = ::send(socket_.get(), out, send_bytes, MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN) return ErrnoToStatus(errno, "send");
      moved = sent > 0;
      out += sent > 0 ? sent : 0;
      send_bytes -= sent > 0 ? static_cast<size_t>(sent) : 0;
    }
    if (receive_bytes > 0) {
      const ssize_t got = recv(socket_.get(), in, receive_bytes, 0);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return ErrnoToStatus(errno, "recv");
      moved = moved || got > 0;
      in += got > 0 ? got : 0;
      receive_bytes -= got > 0 ? static_cast<size_t>(got) : 0;
    }
    if (moved || wait_ == Wait::kSpin) continue;
    pollfd one = {
        socket_.get(),
        static_cast<short>((send_bytes > 0 ? POLLOUT : 0) | (receive_bytes > 0 ? POLLIN : 0)), 0};
    if (poll(&one, 1, kPollMillis) == 0) return DeadlineExceededError("nothing comes");
  }
  return OkStatus();
}

Status SocketLoop::AllReduce(float* data, size_t count) {
  const size_t half = count / 2;
  float* const own = rank_ == 0 ? data : data + half;
  float* const other = rank_ == 0 ? data + half : data;
  const size_t own_count = rank_ == 0 ? half : count - half, other_count = count - own_count;
  if (received_.size() < own_count) received_.resize(own_count);
  RETURN_IF_ERROR(
      Exchange(other, other_count * sizeof(float), received_.data(), own_count * sizeof(float)));
  for (size_t i = 0; i < own_count; ++i) own[i] += received_[i];
  return Exchange(own, own_count * sizeof(float), other, other_count * sizeof(float));
}

Status SocketLoop::Barrier() {
  char sent = 0, received = 0;
  return Exchange(&sent, 1, &received, 1);
}

}  // namespace cadre
