// gRPC settings that server and clients share: limits, keepalive, credentials, metadata keys, and
// how statuses cross. Thread safe.
#ifndef CADRE_RPC_CHANNEL_ARGUMENTS_H_
#define CADRE_RPC_CHANNEL_ARGUMENTS_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/transport_security.h"

namespace cadre {

// One message, in either direction.
inline constexpr int kMessageBytesMax = 1 << 20;
// Messages of a node's stream that go out as one (NodeMessage.more), beyond the first.
inline constexpr size_t kBundleBytesMax = 64 << 10;
// All metadata of one call.
inline constexpr int kMetadataBytesMax = 8 << 10;
// Text of a status; longer ones are cut, so that they fit into the metadata.
inline constexpr size_t kStatusTextBytesMax = 1 << 10;
// What a peer may send on a stream before it has been read; what is on its way to a peer 50 ms off
// at 40 Mbit/s.
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

// How a server begins its refusal (UNAVAILABLE) as long as it is not the one that leads.
inline constexpr char kInReserve[] = "this server stands in reserve";
// And one that led until now.
inline constexpr char kNoLongerLeads[] = "this server no longer leads";

void SetServerArguments(grpc::ServerBuilder& builder);
// What may differ from client to client. Setting an argument again afterwards has no effect: gRPC
// takes the first of two.
struct ClientTiming {
  absl::Duration connect_timeout = kConnectTimeout;
  absl::Duration keepalive_time = kKeepaliveTime;
  absl::Duration keepalive_timeout = kKeepaliveTimeout;
};
grpc::ChannelArguments ClientChannelArguments(const ClientTiming& timing = {});

// INVALID_ARGUMENT naming the file when one of tls_dir is absent, unreadable, or (key.pem) open to
// other users.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TransportSecurity& security);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TransportSecurity& security);

// Keeps gRPC's own lines off stderr, unless GRPC_VERBOSITY or GRPC_TRACE asks for them: what they
// say reaches the user as a status, in our words. May be called any number of times.
void QuietGrpcLog();

grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace cadre

#endif  // CADRE_RPC_CHANNEL_ARGUMENTS_H_
