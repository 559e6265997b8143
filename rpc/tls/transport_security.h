// How connections between a server and its clients are protected. Separate from credentials.h so
// that code which only passes it on does not need gRPC.
#ifndef CADRE_RPC_TLS_TRANSPORT_SECURITY_H_
#define CADRE_RPC_TLS_TRANSPORT_SECURITY_H_

#include <string>

namespace cadre::rpc {

// Without tls_dir and by_token, connections are not protected.
struct TransportSecurity {
  // The directory of ca.pem, cert.pem and key.pem: both sides present a certificate that ca.pem
  // signed (mutual TLS).
  std::string tls_dir;
  // TLS in which only the server proves its identity, by the key that the token names
  // (base/tokens/server_key.h).
  bool by_token = false;
  // For a client with tls_dir: it has only ca.pem and presents no certificate.
  bool nameless = false;
  // For a server: clients in clear text are served too, also off loopback. Not with tls_dir.
  bool insecure = false;
};

// The error for a token that must not be used off loopback.
inline constexpr char kNoServerKey[] =
    "the token names no key by which the server could prove who it is: make one with 'cadre token "
    "new FILE' (a user's with --user), use certificates (--tls-dir), or leave the network "
    "unprotected (--insecure)";

}  // namespace cadre::rpc

#endif  // CADRE_RPC_TLS_TRANSPORT_SECURITY_H_
