// The key by which a server proves its identity. It is derived from the server's token, so that
// every holder of that token knows it, all servers that share the token have the same one, and
// nothing else has to be stored or distributed. Tokens that are derived from the server's name the
// key by its fingerprint. By OpenSSL. Pure; thread safe.
#ifndef CADRE_BASE_TOKENS_SERVER_KEY_H_
#define CADRE_BASE_TOKENS_SERVER_KEY_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

// A fingerprint has this many hexadecimal digits.
inline constexpr size_t kFingerprintDigits = 64;

// Whether a key can be made from the secret: it must look like RandomToken()'s. A key made from a
// weaker secret would let everybody who sees the key guess the secret.
bool MakesServerKey(absl::string_view secret);

// An Ed25519 key and a self-signed certificate for it that never expires.
struct ServerIdentity {
  std::string key_pem;
  std::string certificate_pem;
};
// Also works for a secret that makes no key, for callers that need a certificate and never show it.
ServerIdentity MakeServerIdentity(absl::string_view secret);

// SHA-256 of the public key (its SubjectPublicKeyInfo, in DER), in lower-case digits. Empty: the
// text is no certificate.
std::string KeyFingerprint(absl::string_view certificate_pem);

// The fingerprint of the secret's key; empty: it makes none.
std::string ServerKeyOf(absl::string_view secret);

}  // namespace cadre

#endif  // CADRE_BASE_TOKENS_SERVER_KEY_H_
