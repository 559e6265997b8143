// How gRPC connections are protected: mutual TLS, or nothing on loopback.
#ifndef CADRE_RPC_CREDENTIALS_H_
#define CADRE_RPC_CREDENTIALS_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/status/statusor.h"
#include "rpc/transport_security.h"

namespace cadre::rpc {

// INVALID_ARGUMENT naming the file when one of tls_dir is absent, unreadable, or (key.pem) open to
// other users.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TransportSecurity& security);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TransportSecurity& security);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_CREDENTIALS_H_
