#include "worker_runtime/testing/store_socket_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "rpc/frames/store_frames.h"
#include "rpc/store_reply.h"

namespace cadre {
namespace {

// False: nothing more can be written.
bool Write(int socket, const std::string& bytes) {
  return send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

// The next frame; false at the end.
bool ReadFrame(int socket, frames::FrameReader* reader, std::string* frame) {
  for (;;) {
    absl::string_view found;
    const absl::StatusOr<bool> next = reader->Next(&found);
    if (!next.ok()) return false;
    if (*next) {
      *frame = std::string(found);
      return true;
    }
    pollfd wait = {socket, POLLIN, 0};
    poll(&wait, 1, -1);
    if (!reader->ReadFrom(socket).ok()) return false;
  }
}

}  // namespace

StoreSocketServer::StoreSocketServer(const std::string& agent_socket, std::string token,
                                     Handler handler)
    : path_(StoreSocketPath(agent_socket)), token_(std::move(token)), handler_(std::move(handler)) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof(address.sun_path), "%s", path_.c_str());
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener_, 64) != 0) {
    std::perror(path_.c_str());
    std::abort();
  }
  acceptor_ = std::thread([this] { Accept(); });
}

StoreSocketServer::~StoreSocketServer() {
  unlink(path_.c_str());
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  close(listener_);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const int socket : sockets_) shutdown(socket, SHUT_RDWR);
  }
  for (std::thread& thread : threads_) thread.join();
}

void StoreSocketServer::Accept() {
  for (;;) {
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    sockets_.insert(socket);
    threads_.emplace_back([this, socket] { Serve(socket); });
  }
}

void StoreSocketServer::Serve(int socket) {
  frames::FrameReader reader{kStoreFrameBytesMax};
  std::string frame;
  bool serving = ReadFrame(socket, &reader, &frame);
  if (serving && frame != token_) {
    std::string bytes;
    AppendStoreFrame(StoreErrorReply(0, 0, absl::UnauthenticatedError("wrong token")), &bytes);
    Write(socket, bytes);
    serving = false;
  }
  while (serving && ReadFrame(socket, &reader, &frame)) {
    v1::StoreRequest request;
    serving = request.ParseFromString(frame);
    if (!serving) break;
    std::string bytes;
    for (const v1::StoreReply& reply : handler_(request)) {
      AppendStoreFrame(reply, &bytes);
      if (reply.request_id() == 0) serving = false;
    }
    if (!Write(socket, bytes)) break;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  sockets_.erase(socket);
  close(socket);
}

}  // namespace cadre
