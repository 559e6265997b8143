#include "worker_runtime/testing/call_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rpc/frames/codec.h"
#include "rpc/frames/frame_reader.h"

namespace cadre {
namespace {

// Returns false if nothing more can be written.
bool Write(int socket, const std::string& bytes) {
  return send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

// Reads the next frame; returns false at the end.
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

CallServer::CallServer(const std::string& socket_path, std::string token, Handler handler)
    : path_(socket_path), token_(std::move(token)), handler_(std::move(handler)) {
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

CallServer::~CallServer() {
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

void CallServer::Accept() {
  for (;;) {
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    sockets_.insert(socket);
    threads_.emplace_back([this, socket] { Serve(socket); });
  }
}

void CallServer::Serve(int socket) {
  frames::FrameReader reader{rpc::kWorkerFrameBytesMax};
  std::string frame;
  bool serving = ReadFrame(socket, &reader, &frame);
  if (serving && frame != token_) {
    std::string bytes;
    frames::AppendMessage(rpc::ErrorReply(0, absl::UnauthenticatedError("wrong token")), &bytes);
    Write(socket, bytes);
    serving = false;
  }
  while (serving && ReadFrame(socket, &reader, &frame)) {
    const absl::StatusOr<rpc::WorkerCall> call = frames::ParseMessage<rpc::WorkerCall>(frame);
    if (!call.ok()) break;
    std::string bytes;
    for (const rpc::WorkerReply& reply : handler_(*call)) {
      frames::AppendMessage(reply, &bytes);
      if (reply.id == 0) serving = false;
    }
    if (!Write(socket, bytes)) break;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  sockets_.erase(socket);
  close(socket);
}

}  // namespace cadre
