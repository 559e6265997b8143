// The security of gRPC connections: the credentials of clients, and what servers present and
// require. Thread safe.
#ifndef CADRE_RPC_TLS_CREDENTIALS_H_
#define CADRE_RPC_TLS_CREDENTIALS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rpc/tls/transport_security.h"

namespace cadre::rpc {

// Reads the files and the token again at each call; connections made with the result use what they
// held. INVALID_ARGUMENT: a file of tls_dir is missing, unreadable, or (key.pem) open to other
// users, and is named; or the token names no key.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TransportSecurity& security, const std::string& token = "");

// What one listening port of a gRPC server presents in TLS handshakes and requires of clients. It
// must outlive its gRPC server.
class ServerSecurity {
 public:
  // INVALID_ARGUMENT as for MakeChannelCredentials.
  static absl::StatusOr<std::unique_ptr<ServerSecurity>> Make(const TransportSecurity& security,
                                                              const std::string& token);
  ~ServerSecurity();
  ServerSecurity(const ServerSecurity&) = delete;
  ServerSecurity& operator=(const ServerSecurity&) = delete;

  std::shared_ptr<grpc::ServerCredentials> Credentials() const;

  // Reads the files and the token again. New handshakes use them, and connections continue; a
  // certificate and a key that do not match are ignored until they do. True: something has changed.
  // An error changes nothing.
  absl::StatusOr<bool> Renew(const std::string& token);

  struct State;

 private:
  explicit ServerSecurity(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

// Whether the client has presented a certificate that the authority signed.
bool HasCertificate(const grpc::ServerContext& context);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_TLS_CREDENTIALS_H_
