// How a client's gRPC connections are protected. Thread safe.
#ifndef CADRE_RPC_TLS_CREDENTIALS_H_
#define CADRE_RPC_TLS_CREDENTIALS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rpc/tls/transport_security.h"

namespace cadre::rpc {

// Reads the files and the token anew: what they say counts for the connections made with it.
// INVALID_ARGUMENT: a file of tls_dir is absent, unreadable, or (key.pem) open to other users, and
// is named; the token names no key.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TransportSecurity& security, const std::string& token = "");

}  // namespace cadre::rpc

#endif  // CADRE_RPC_TLS_CREDENTIALS_H_
