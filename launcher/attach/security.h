// How this process and a server's other side protect what they say to each other. Pure.
#ifndef CADRE_LAUNCHER_ATTACH_SECURITY_H_
#define CADRE_LAUNCHER_ATTACH_SECURITY_H_

#include <string>

#include "absl/status/statusor.h"
#include "rpc/tls/transport_security.h"

namespace cadre::launcher {

// A token and where it is from.
struct FoundToken {
  std::string token;
  // Read anew there; empty: it stays.
  std::string file = "";
};

// What --insecure means, in one line.
inline constexpr char kInsecureNotice[] =
    "--insecure: nothing is encrypted and the server proves nothing; whoever reads the network, or "
    "answers in the server's place, has the token and may do all that it allows";

// And to a server.
inline constexpr char kServesClearNotice[] =
    "--insecure: who comes in clear text is served as well; whoever reads the network has the "
    "tokens of those and may do all that they allow";

// Mutual TLS by --tls-dir; otherwise TLS by the key that the token names. In clear: with
// --insecure, and where the token names no key on loopback or as a launcher's of Cadre 0.2. Both
// sides decide alike, since both have the token. INVALID_ARGUMENT: a token that names no key, off
// loopback; both flags.
absl::StatusOr<rpc::TransportSecurity> SecurityOf(const std::string& tls_dir, bool insecure,
                                                  const FoundToken& token, bool loopback);

// What a server does where a client would do this: with --insecure it serves those who come in
// clear text and those who speak TLS by the key that the token names.
rpc::TransportSecurity ForServer(rpc::TransportSecurity security, const FoundToken& token);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ATTACH_SECURITY_H_
