// The agent's connection to the server over gRPC: one stream, opened again whenever it ends. Where
// there are several servers, of which one leads, they are tried in turn.
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
  // The server's token; empty where it wants none.
  std::string token;
  // The token and the TLS files are read anew for each attempt.
  rpc::TransportSecurity security;
  // A server that has welcomed this agent and refuses it later is tried again, ever more rarely,
  // and on_down hears that it refuses: it may have been started with another token for a moment
  // (retry_rule.h).
  bool returns_after_refusal = false;
  // Where the token was read; empty: it does not change.
  std::string token_file = "";
};

// From the start of an attempt until the server has answered.
inline constexpr absl::Duration kLinkOpenTimeout = absl::Seconds(15);
// With several servers one that does not even take the connection must not hold up the others, and
// the one that leads next is found soon: within the lease (10 s) that it gives every node, also
// when the one before it does not hang up (its machine is cut off, its process stands still).
inline constexpr absl::Duration kConnectTimeoutOfSeveral = absl::Seconds(2);
inline constexpr absl::Duration kKeepaliveOfSeveral = absl::Seconds(4);
// How long Stop() waits for what is queued to arrive.
inline constexpr absl::Duration kLinkFlushTimeout = absl::Milliseconds(200);

// One thread while it runs, which connects, reads and makes all callbacks; Send() writes on its
// caller's. Stop() and the destructor must not be called from a callback.
//
// Messages that wait while one is written go out as one.
//
// A message over the size limit never leaves: a store request is answered with INVALID_ARGUMENT,
// any other ends the link with it.
//
// Of several servers all are tried before on_down says, in one status, that none could be reached.
//
// Statuses of on_down, each naming the endpoint: UNAVAILABLE (cannot be reached, does not resolve,
// connection lost, stands in reserve), DEADLINE_EXCEEDED (no answer, or none of the TLS files' file
// system), FAILED_PRECONDITION (answers, but is not a cadre server), UNAUTHENTICATED (token),
// INVALID_ARGUMENT (malformed endpoint, TLS files), and what the server itself ends the stream
// with.
std::unique_ptr<ServerLink> MakeGrpcLink(GrpcLinkOptions options);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_LINK_GRPC_LINK_H_
