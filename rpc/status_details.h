// What the status of a failed call means, beyond its code: details that a Cadre server adds for
// programs, and why gRPC did not reach a peer. Pure.
#ifndef CADRE_RPC_STATUS_DETAILS_H_
#define CADRE_RPC_STATUS_DETAILS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cadre::rpc {

// UNAVAILABLE, from a Cadre server that is not the leader.
absl::Status NotLeading(absl::string_view message);
bool IsNotLeading(const absl::Status& status);

// The details as bytes (v1::StatusDetails); empty: none.
std::string SerializedDetails(const absl::Status& status);
absl::Status WithSerializedDetails(absl::Status status, absl::string_view details);

// Why gRPC did not reach a peer. gRPC 1.51 reports that only as English text, so this is the only
// place that parses it.
enum class ConnectError {
  kOther,
  kUnknownName,
  kRefused,
  kNoRoute,
  kNetworkUnreachable,
  kNotPermitted,
  kNotGrpc,  // the peer answers in another protocol
  kTls,
  kOtherKey,  // the server's key is not the one that the token names (credentials.h)
  kHandshake,
  kHandshakeTimedOut,
  kTimedOut,
  kClosedSilently,
  kReset,
};

// `text` is the message of a status that gRPC created.
ConnectError ConnectErrorOf(absl::string_view text);

// Whether no connection was established, so that the call cannot have had an effect.
bool NeverConnected(absl::string_view text);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_STATUS_DETAILS_H_
