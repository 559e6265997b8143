// Store operations of a worker on a unix socket to its agent, without the cost of gRPC.
//
// The worker's first frame is the agent's token, each further one a StoreRequest. The agent answers
// each with one StoreReply, in any order, matched by client and request_id; it does what
// Store.Execute does, and what would be the status of that call is the reply's code and message. A
// reply to request 0 says why the agent ends the connection: UNAUTHENTICATED (the token),
// INVALID_ARGUMENT (what it was sent is no request), RESOURCE_EXHAUSTED (too many connections),
// UNAVAILABLE (the agent leaves). Requests without an answer may be made again.
#ifndef CADRE_RPC_FRAMES_STORE_FRAMES_H_
#define CADRE_RPC_FRAMES_STORE_FRAMES_H_

#include <string>

#include "google/protobuf/message_lite.h"
#include "rpc/channel_arguments.h"
#include "rpc/frames/frame_reader.h"

namespace cadre {

// Where the agent listens for them whose gRPC socket is there.
inline std::string StoreSocketPath(const std::string& agent_socket) {
  return agent_socket + "-store";
}

inline constexpr size_t kStoreFrameBytesMax = kMessageBytesMax;

inline void AppendStoreFrame(const google::protobuf::MessageLite& message, std::string* bytes) {
  const size_t start = bytes->size();
  bytes->append(frames::kLengthBytes, '\0');
  message.AppendToString(bytes);
  frames::CloseFrame(start, bytes);
}

}  // namespace cadre

#endif  // CADRE_RPC_FRAMES_STORE_FRAMES_H_
