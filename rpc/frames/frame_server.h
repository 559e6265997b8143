// The serving end of framed sockets: many clients, each of which shows the token in its first frame
// (where there is one) and has every further one answered by one frame, in any order.
//
// Used by one thread at a time; never blocks.
#ifndef CADRE_RPC_FRAMES_FRAME_SERVER_H_
#define CADRE_RPC_FRAMES_FRAME_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/scoped_fd.h"

namespace cadre::frames {

class FrameServer {
 public:
  struct Options {
    // Who serves, for errors.
    std::string name = "the agent";
    // nullopt: `accept` gives none that is not trusted.
    std::optional<std::string> token;
    size_t max_frame_bytes = 0;
    size_t max_connections = 4096;
    // Frames of one client without an answer, answers that it has not read included; beyond that
    // nothing more is read from it.
    size_t max_unanswered = 1024;
    // Clients connect here; `accept` gives the next connection, non-blocking, or -1 and errno.
    // `connection` is what it is called from then on.
    int listener = -1;
    std::function<int(uint64_t connection)> accept;
    // The frame, with its length, that says why a connection ends.
    std::function<std::string(uint64_t connection, const absl::Status&)> farewell;
    // A frame that is to be answered. What is not OK ends the connection, which must not be
    // answered any more.
    std::function<absl::Status(uint64_t connection, absl::string_view content)> on_frame;
    // The connection has ended: nobody waits there for answers.
    std::function<void(uint64_t connection)> on_end;
  };

  static absl::StatusOr<std::unique_ptr<FrameServer>> Make(Options options);
  // Says to all that the server leaves.
  ~FrameServer();
  FrameServer(const FrameServer&) = delete;
  FrameServer& operator=(const FrameServer&) = delete;

  // Readable when Read should be called.
  int fd() const { return epoll_; }
  // Clients connect here from now on; to the one before as well, until it is closed.
  absl::Status ListenAt(int listener);
  // Hands what clients say now to on_frame and on_end.
  void Read();
  // A frame with its length. Nothing happens where the connection has ended.
  void Answer(uint64_t connection, absl::string_view frame);

 private:
  struct Connection;

  FrameServer(Options options, int epoll);
  void Accept();
  // It stays only where `refused` is OK.
  void Add(int socket, const absl::Status& refused);
  void ReadFrom(Connection* connection);
  // Not OK: why the connection is to be ended.
  absl::Status TakeFrames(Connection* connection);
  // False: it is broken.
  bool Flush(Connection* connection);
  void Watch(Connection* connection);
  // Says why, where there is room for that.
  void End(Connection* connection, const absl::Status& why);

  const Options options_;
  const int epoll_;
  // Kept for whoever comes when there is no other descriptor.
  ScopedFd spare_;
  uint64_t last_number_ = 0;
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;
};

}  // namespace cadre::frames

#endif  // CADRE_RPC_FRAMES_FRAME_SERVER_H_
