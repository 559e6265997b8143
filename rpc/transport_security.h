// How a connection between server and agent is protected. Kept apart from credentials.h so
// that those who only pass it on need no gRPC.
#ifndef CADRE_RPC_TRANSPORT_SECURITY_H_
#define CADRE_RPC_TRANSPORT_SECURITY_H_

#include <string>

namespace cadre::rpc {

struct TransportSecurity {
  // Holds ca.pem, cert.pem and key.pem: both sides show a certificate that ca.pem signed (mutual
  // TLS). Empty: no encryption.
  std::string tls_dir;
};

}  // namespace cadre::rpc

#endif  // CADRE_RPC_TRANSPORT_SECURITY_H_
