// The server side of framed sockets. Each client sends the token in its first frame (if one is
// required); each further frame gets one frame as its answer, in any order.
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
    // The name of this server in error messages.
    std::string name = "the agent";
    // nullopt: no token is required, because `accept` returns trusted connections only.
    std::optional<std::string> token;
    size_t max_frame_bytes = 0;
    size_t max_connections = 4096;
    // Frames of one client that have no answer yet, or whose answer the client has not read.
    // Nothing more is read from a client at this limit.
    size_t max_unanswered = 1024;
    // Clients connect to `listener`; `accept` returns the next connection, non-blocking, or -1 and
    // errno. `connection` is the number that identifies it from then on.
    int listener = -1;
    std::function<int(uint64_t connection)> accept;
    // Returns the frame, with its length, that tells the client why its connection ends.
    std::function<std::string(uint64_t connection, const absl::Status&)> farewell;
    // Receives each frame that needs an answer. An error ends the connection, and the frame must
    // not be answered.
    std::function<absl::Status(uint64_t connection, absl::string_view content)> on_frame;
    // The connection has ended; answers to it are dropped.
    std::function<void(uint64_t connection)> on_end;
  };

  static absl::StatusOr<std::unique_ptr<FrameServer>> Make(Options options);
  // Sends all clients a farewell.
  ~FrameServer();
  FrameServer(const FrameServer&) = delete;
  FrameServer& operator=(const FrameServer&) = delete;

  // Readable when Read should be called.
  int fd() const { return epoll_; }
  // Adds a listener. The one before is served too until it is closed.
  absl::Status ListenAt(int listener);
  // Passes the frames that have arrived to on_frame, and ended connections to on_end.
  void Read();
  // Sends a frame, which includes its length. Does nothing if the connection has ended.
  void Answer(uint64_t connection, absl::string_view frame);

 private:
  struct Connection;

  FrameServer(Options options, int epoll);
  void Accept();
  // Ends the connection at once with `refused` unless that is OK.
  void Add(int socket, const absl::Status& refused);
  void ReadFrom(Connection* connection);
  // An error is the reason to end the connection.
  absl::Status TakeFrames(Connection* connection);
  // Returns false if the connection is broken.
  bool Flush(Connection* connection);
  void Watch(Connection* connection);
  // Sends the farewell if the socket has room for it.
  void End(Connection* connection, const absl::Status& why);

  const Options options_;
  const int epoll_;
  // Reserved so that a connection can be accepted, and refused with a reason, when the process has
  // no other descriptor left.
  ScopedFd spare_;
  uint64_t last_number_ = 0;
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;
};

}  // namespace cadre::frames

#endif  // CADRE_RPC_FRAMES_FRAME_SERVER_H_
