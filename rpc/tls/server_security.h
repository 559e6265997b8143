// What a gRPC server shows in TLS handshakes, and wants to be shown. Thread safe.
#ifndef CADRE_RPC_TLS_SERVER_SECURITY_H_
#define CADRE_RPC_TLS_SERVER_SECURITY_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rpc/tls/transport_security.h"

namespace cadre::rpc {

// Of one listening port. Outlives its gRPC server.
class ServerSecurity {
 public:
  // INVALID_ARGUMENT as MakeChannelCredentials (credentials.h).
  static absl::StatusOr<std::unique_ptr<ServerSecurity>> Make(const TransportSecurity& security,
                                                              const std::string& token);
  ~ServerSecurity();
  ServerSecurity(const ServerSecurity&) = delete;
  ServerSecurity& operator=(const ServerSecurity&) = delete;

  std::shared_ptr<grpc::ServerCredentials> Credentials() const;

  // Reads the files, and the token, anew. Handshakes from now on use what they say, connections
  // stay; a certificate and a key that do not belong together are passed over until they do. True:
  // something has changed. An error changes nothing.
  absl::StatusOr<bool> Renew(const std::string& token);

  struct State;

 private:
  explicit ServerSecurity(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

// Whether the caller has proved in the handshake to have a certificate of the authority.
bool HasCertificate(const grpc::ServerContext& context);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_TLS_SERVER_SECURITY_H_
