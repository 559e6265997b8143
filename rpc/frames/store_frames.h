// Store operations of a worker on a unix socket to its agent, without the cost of gRPC: frames of 4
// bytes, the length in little endian, and so many bytes.
//
// The worker's first frame is the agent's token, each further one a StoreRequest. The agent answers
// each with one StoreReply, in any order, matched by client and request_id; it does what
// Store.Execute does, and what would be the status of that call is the reply's code and message. A
// reply to request 0 says why the agent ends the connection: UNAUTHENTICATED (the token),
// INVALID_ARGUMENT (what it was sent is no request), RESOURCE_EXHAUSTED (too many connections),
// UNAVAILABLE (the agent leaves). Requests without an answer may be made again.
#ifndef CADRE_RPC_FRAMES_STORE_FRAMES_H_
#define CADRE_RPC_FRAMES_STORE_FRAMES_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message_lite.h"

namespace cadre {

// Where the agent listens for them whose gRPC socket is there.
std::string StoreSocketPath(const std::string& agent_socket);

// A message must not be larger than kMessageBytesMax.
void AppendFrame(absl::string_view content, std::string* bytes);
void AppendFrame(const google::protobuf::MessageLite& message, std::string* bytes);

// Finds frames in what was read. One thread.
class FrameReader {
 public:
  // Reads once, without waiting. False: there is nothing to read now. UNAVAILABLE: the other side
  // has ended the connection, or it is broken.
  absl::StatusOr<bool> ReadFrom(int socket);
  // False: the next frame is not complete. `frame` is good until the next call of either.
  // INVALID_ARGUMENT: it would be over the limit.
  absl::StatusOr<bool> Next(absl::string_view* frame);

 private:
  std::string bytes_;
  // Of them, those that were given out.
  size_t taken_ = 0;
};

}  // namespace cadre

#endif  // CADRE_RPC_FRAMES_STORE_FRAMES_H_
