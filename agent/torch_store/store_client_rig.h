// Test fixture: a client of PyTorch's TCPStore that sends and reads raw bytes, and builders of its
// requests. One thread.
#ifndef CADRE_AGENT_TORCH_STORE_STORE_CLIENT_RIG_H_
#define CADRE_AGENT_TORCH_STORE_STORE_CLIENT_RIG_H_

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agent/torch_store/torch_request.h"
#include "base/clock.h"
#include "base/scoped_fd.h"
#include "gtest/gtest.h"

namespace cadre::agent {

using rpc::LittleEndian32;
using rpc::LittleEndian64;

inline std::string ValidateBytes() {
  return rpc::TorchOpByte(TorchOp::kValidate) + LittleEndian32(kTorchMagic);
}
inline std::string PingBytes(uint32_t number) {
  return rpc::TorchOpByte(TorchOp::kPing) + LittleEndian32(number);
}
// An operation whose fields are texts.
inline std::string TextsRequest(TorchOp op, const std::vector<std::string>& texts) {
  std::string bytes = rpc::TorchOpByte(op);
  for (const std::string& text : texts) bytes += rpc::TorchText(text);
  return bytes;
}
// An operation that begins with the number of its keys.
inline std::string KeysRequest(TorchOp op, const std::vector<std::string>& keys) {
  std::string bytes = rpc::TorchOpByte(op) + LittleEndian64(keys.size());
  for (const std::string& key : keys) bytes += rpc::TorchText(key);
  return bytes;
}
// ADD and BARRIER.
inline std::string NumberRequest(TorchOp op, absl::string_view key, int64_t number) {
  return absl::StrCat(rpc::TorchOpByte(op), rpc::TorchText(key),
                      LittleEndian64(static_cast<uint64_t>(number)));
}

class StoreClient {
 public:
  // Connects from `from`, a loopback address. `meanwhile` is called while the client waits.
  explicit StoreClient(
      uint16_t port, std::function<void()> meanwhile = [] {}, const char* from = "127.0.0.1")
      : meanwhile_(std::move(meanwhile)), socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, from, &address.sin_addr);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    address.sin_port = htons(port);
    connected_ =
        connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }

  bool connected() const { return connected_; }
  int fd() const { return socket_.get(); }
  // Returns false if the server has closed the connection.
  bool Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent =
          send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno != EAGAIN) return false;
      if (sent > 0) bytes.remove_prefix(static_cast<size_t>(sent));
      meanwhile_();
    }
    return true;
  }
  // Returns the next `size` bytes; fewer if the connection ended, or they did not come in time.
  std::string Read(size_t size, absl::Duration timeout = absl::Seconds(20)) {
    std::string all;
    const MonoTime deadline = MonoNow() + timeout;
    ended_ = false;
    while (all.size() < size && MonoNow() < deadline) {
      meanwhile_();
      pollfd readable = {socket_.get(), POLLIN, 0};
      if (poll(&readable, 1, 1) == 0) continue;
      char buffer[65536];
      const ssize_t got =
          recv(socket_.get(), buffer, std::min(sizeof(buffer), size - all.size()), MSG_DONTWAIT);
      if (got > 0) all.append(buffer, static_cast<size_t>(got));
      ended_ = got == 0 || (got < 0 && errno != EAGAIN);
      if (ended_) break;
    }
    return all;
  }
  // Whether the server closes the connection without sending anything more.
  bool IsClosed() { return Read(1).empty() && ended_; }

 private:
  const std::function<void()> meanwhile_;
  const ScopedFd socket_;
  bool connected_ = false;
  bool ended_ = false;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_TORCH_STORE_STORE_CLIENT_RIG_H_
