// How connections between a server and its callers are protected. Kept apart from credentials.h so
// that those who only pass it on need no gRPC.
#ifndef CADRE_RPC_TLS_TRANSPORT_SECURITY_H_
#define CADRE_RPC_TLS_TRANSPORT_SECURITY_H_

#include <string>

namespace cadre::rpc {

// Without tls_dir and by_token: not at all.
struct TransportSecurity {
  // Holds ca.pem, cert.pem and key.pem: both sides show a certificate that ca.pem signed (mutual
  // TLS).
  std::string tls_dir;
  // TLS in which the server alone proves who it is, by the key that the token names
  // (base/tokens/server_key.h).
  bool by_token = false;
  // Of a client with tls_dir: it has ca.pem alone, and shows no certificate.
  bool nameless = false;
  // Of a server: who comes in clear text is served too, also off loopback. Not with tls_dir.
  bool insecure = false;
};

// What keeps a token from being used off loopback.
inline constexpr char kNoServerKey[] =
    "the token names no key by which the server could prove who it is: make one with 'cadre token "
    "new FILE' (a user's with --user), use certificates (--tls-dir), or leave the network "
    "unprotected (--insecure)";

}  // namespace cadre::rpc

#endif  // CADRE_RPC_TLS_TRANSPORT_SECURITY_H_
