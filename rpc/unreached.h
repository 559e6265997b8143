// Why gRPC did not reach a peer. gRPC 1.51 says that in English only, so this is the one place that
// reads it. Pure.
#ifndef CADRE_RPC_UNREACHED_H_
#define CADRE_RPC_UNREACHED_H_

#include "absl/strings/string_view.h"

namespace cadre::rpc {

enum class Unreached {
  kOther,
  kUnknownName,
  kRefused,
  kNoRoute,
  kNetworkUnreachable,
  kNotPermitted,
  kNotGrpc,  // somebody answers, in another protocol
  kTls,
  kOtherKey,  // the server is not the one that the token names (credentials.h)
  kHandshake,
  kHandshakeGivenUp,
  kTimedOut,
  kClosedWithoutAWord,
  kReset,
};

// `text` is the message of a status that gRPC made.
Unreached WhyUnreached(absl::string_view text);

// Whether no connection came about, so that the call cannot have had an effect.
bool NeverConnected(absl::string_view text);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_UNREACHED_H_
