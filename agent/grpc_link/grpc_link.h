// The agent's connection to the server over gRPC: one stream, opened again whenever it ends.
#ifndef CADRE_AGENT_GRPC_LINK_GRPC_LINK_H_
#define CADRE_AGENT_GRPC_LINK_GRPC_LINK_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "agent/server_link.h"
#include "proto/transport_security.h"

namespace cadre {

struct GrpcLinkOptions {
  // host:port
  std::string endpoint;
  // The server's token; empty where it wants none.
  std::string token;
  TransportSecurity security;
};

// Messages that wait to be written: this many, and of this size. A server that is further behind is
// connected to again.
inline constexpr size_t kLinkQueueMessagesMax = 65536;
inline constexpr size_t kLinkQueueBytesMax = 16 << 20;
// From the start of an attempt until the server has answered.
inline constexpr absl::Duration kLinkOpenTimeout = absl::Seconds(15);
// How long Stop() waits for what is queued to arrive.
inline constexpr absl::Duration kLinkFlushTimeout = absl::Milliseconds(200);

// Two threads while it runs: one connects, reads and makes all callbacks, one writes. Stop() and
// the destructor must not be called from a callback.
//
// A message over the size limit never leaves: a store request is answered with INVALID_ARGUMENT,
// any other ends the link with it.
//
// Statuses of on_down, each naming the endpoint: UNAVAILABLE (cannot be reached, does not resolve,
// connection lost), DEADLINE_EXCEEDED (no answer), FAILED_PRECONDITION (answers, but is not a cadre
// server), UNAUTHENTICATED (token), INVALID_ARGUMENT (malformed endpoint, TLS files), and what the
// server itself ends the stream with.
std::unique_ptr<ServerLink> MakeGrpcLink(GrpcLinkOptions options);

}  // namespace cadre

#endif  // CADRE_AGENT_GRPC_LINK_GRPC_LINK_H_
