// gRPC settings that server and clients share: limits, keepalive, deadlines, metadata keys. Thread
// safe.
#ifndef CADRE_RPC_CHANNELS_H_
#define CADRE_RPC_CHANNELS_H_

#include <grpcpp/grpcpp.h>

#include "absl/time/time.h"
#include "rpc/limits.h"

namespace cadre::rpc {

// All metadata of one call.
inline constexpr int kMetadataBytesMax = 8 << 10;
// Bytes that a peer may send on a stream before they have been read: those that are on their way to
// a peer 50 ms off at 40 Mbit/s.
inline constexpr int kReadAheadBytes = 256 << 10;
// Calls that one connection may have under way.
inline constexpr int kCallsPerConnectionMax = 1024;

// A peer that is silent for kKeepaliveTime is asked, and given up kKeepaliveTimeout later.
inline constexpr absl::Duration kKeepaliveTime = absl::Seconds(10);
inline constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(5);
// The server closes connections that ask more often.
inline constexpr absl::Duration kPingIntervalMin = absl::Seconds(3);

inline constexpr absl::Duration kReconnectBackoffMin = absl::Milliseconds(50);
// A server that was away for a second is found again within another one; a thousand nodes knock no
// more than a few thousand times a second.
inline constexpr absl::Duration kReconnectBackoffMax = absl::Seconds(1);
// Resolving a name, and connecting, take no longer than this each.
inline constexpr absl::Duration kConnectTimeout = absl::Seconds(5);

// Metadata of every call: the token.
inline constexpr char kTokenMetadata[] = "cadre-token";
// Initial metadata by which a server says that it is one of ours.
inline constexpr char kServerMetadata[] = "cadre-server";
// Its values: a server that may be started again and go on with its jobs; one that keeps nothing
// and is in a launcher, with which its job ends. Callers take any other value for the first.
inline constexpr char kServerReturns[] = "1";
inline constexpr char kServerEndsWithLauncher[] = "ends-with-launcher";

void SetServerArguments(grpc::ServerBuilder& builder);
// The settings that differ from client to client. Setting an argument again afterwards has no
// effect: gRPC takes the first of two.
struct ClientTiming {
  absl::Duration connect_timeout = kConnectTimeout;
  absl::Duration keepalive_time = kKeepaliveTime;
  absl::Duration keepalive_timeout = kKeepaliveTimeout;
};
// `answer_bytes_max`: kListBytesMax for who asks for lists.
grpc::ChannelArguments ClientChannelArguments(const ClientTiming& timing = {},
                                              int answer_bytes_max = kMessageBytesMax);

// Keeps gRPC's own lines off stderr, unless GRPC_VERBOSITY or GRPC_TRACE asks for them: what they
// say reaches the user as a status, in our words. May be called any number of times.
void QuietGrpcLog();

// For who lives as long as its process: gRPC stays as it is until that ends. Its shutdown (1.51)
// waits for ever for a thread that it was refused once (ulimit -u, a container's pids.max), and
// comes whenever nobody happens to use it. May be called any number of times.
void KeepGrpcUp();

}  // namespace cadre::rpc

#endif  // CADRE_RPC_CHANNELS_H_
