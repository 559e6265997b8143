// What servers and clients of gRPC share: limits, keepalive, deadlines, metadata keys, and statuses
// on their way over gRPC. Thread safe.
#ifndef CADRE_RPC_CHANNELS_H_
#define CADRE_RPC_CHANNELS_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rpc/message_limits.h"

namespace cadre::rpc {

// The limit of all metadata of one call.
inline constexpr int kMetadataBytesMax = 8 << 10;
// The flow-control window: bytes that a peer may send on a stream before they have been read. It
// covers the bytes in flight to a peer 50 ms away at 40 Mbit/s.
inline constexpr int kReadAheadBytes = 256 << 10;
// Concurrent calls of one connection.
inline constexpr int kCallsPerConnectionMax = 1024;

// A peer that is silent for kKeepaliveTime gets a ping; kKeepaliveTimeout later the connection is
// given up.
inline constexpr absl::Duration kKeepaliveTime = absl::Seconds(10);
inline constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(5);
// The server closes connections that ping more often.
inline constexpr absl::Duration kPingIntervalMin = absl::Seconds(3);

inline constexpr absl::Duration kReconnectBackoffMin = absl::Milliseconds(50);
// A server that was away for a second is found again within another second, and a thousand nodes
// make a few thousand attempts per second at most.
inline constexpr absl::Duration kReconnectBackoffMax = absl::Seconds(1);
// Resolving a name and connecting take no longer than this each.
inline constexpr absl::Duration kConnectTimeout = absl::Seconds(5);

// The metadata of every call that carries the token.
inline constexpr char kTokenMetadata[] = "cadre-token";
// Initial metadata by which clients recognize a Cadre server.
inline constexpr char kServerMetadata[] = "cadre-server";
// Its values: a server that may be restarted and then continue its jobs; and one that runs in a
// launcher and keeps no state, so that its job ends with the launcher. Clients treat any other
// value as the first.
inline constexpr char kServerReturns[] = "1";
inline constexpr char kServerEndsWithLauncher[] = "ends-with-launcher";

void SetServerArguments(grpc::ServerBuilder& builder);
// The settings that differ from client to client. They must be set here: gRPC uses the first of two
// settings of an argument, so setting one again afterwards has no effect.
struct ClientTiming {
  absl::Duration connect_timeout = kConnectTimeout;
  absl::Duration keepalive_time = kKeepaliveTime;
  absl::Duration keepalive_timeout = kKeepaliveTimeout;
};
// `answer_bytes_max`: clients that request lists need kListBytesMax.
grpc::ChannelArguments ClientChannelArguments(const ClientTiming& timing = {},
                                              int answer_bytes_max = kMessageBytesMax);

// Keeps gRPC's own log lines off stderr, unless GRPC_VERBOSITY or GRPC_TRACE asks for them: the
// user gets the same facts from a status. May be called any number of times.
void QuietGrpcLog();

// Keeps gRPC initialized until the process ends, for objects that live as long. gRPC's shutdown
// (1.51) waits for ever if a thread that it needed could not be created (ulimit -u, a container's
// pids.max), and it runs whenever gRPC happens to have no user. May be called any number of times.
void KeepGrpcUp();

// Makes gRPC check its timers if the wall clock was set back since this process called it last.
// gRPC 1.51 over this Abseil sleeps until the next timer by the wall clock: set back by an hour, it
// delays every deadline and keepalive by an hour, so that a silent server goes unnoticed for as
// long. Clients call it every few seconds, once gRPC is in use. Any thread; reads two clocks.
void WakeGrpcTimersIfClockWasSetBack();

// --- statuses ---

// The limit of a status message; longer ones are cut, so that they fit into the metadata.
inline constexpr size_t kStatusTextBytesMax = 1 << 10;

// Convert a status for transport over gRPC, with its details (status_details.h).
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_CHANNELS_H_
