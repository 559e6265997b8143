// The agent's connection to the server over gRPC: one stream, reopened whenever it ends. If there
// are several servers, of which one leads, they are tried in turn.
#ifndef CADRE_AGENT_LINK_GRPC_LINK_H_
#define CADRE_AGENT_LINK_GRPC_LINK_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/link/server_link.h"
#include "rpc/tls/transport_security.h"

namespace cadre::agent {

struct GrpcLinkOptions {
  // host:port of each server; at least one.
  std::vector<std::string> endpoints;
  // The server's token; empty if it requires none.
  std::string token;
  // The token and the TLS files are re-read for each attempt.
  rpc::TransportSecurity security;
  // If a server that has welcomed this agent refuses it later, the link retries with growing pauses
  // and on_down gets the refusal: the server may only have been started with another token for a
  // moment (RetryRule in link_status.h).
  bool returns_after_refusal = false;
  // The file from which the token was read; empty: it does not change.
  std::string token_file = "";
};

// The time from the start of an attempt until the server's answer.
inline constexpr absl::Duration kLinkOpenTimeout = absl::Seconds(15);
// With several servers, one that does not even accept the connection must not delay the others. The
// next leader must be found within the lease (10 s) that it gives every node, even if the earlier
// leader does not close the connection (its machine is cut off, or its process is suspended).
inline constexpr absl::Duration kConnectTimeoutOfSeveral = absl::Seconds(2);
inline constexpr absl::Duration kKeepaliveOfSeveral = absl::Seconds(4);
// How long Stop() waits for queued messages to arrive.
inline constexpr absl::Duration kLinkFlushTimeout = absl::Milliseconds(200);

// The link has one thread, which connects, reads and makes all callbacks; Send() writes on the
// caller's thread. Stop() and the destructor must not be called from a callback.
//
// Messages queued during a write are sent together.
//
// A message over the size limit is never sent: a store request is answered with INVALID_ARGUMENT,
// any other ends the link with that error.
//
// Of several servers all are tried before on_down reports, in one status, that none was reached.
//
// Statuses of on_down, each naming the endpoint: UNAVAILABLE (cannot be reached, does not resolve,
// connection lost, a standby server), DEADLINE_EXCEEDED (no answer, or the file system of the TLS
// files does not respond), FAILED_PRECONDITION (answers, but is not a cadre server),
// UNAUTHENTICATED (token), INVALID_ARGUMENT (malformed endpoint, TLS files), and the status with
// which the server itself ends the stream.
std::unique_ptr<ServerLink> MakeGrpcLink(GrpcLinkOptions options);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_LINK_GRPC_LINK_H_
