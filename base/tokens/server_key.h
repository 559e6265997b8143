// The key by which a server proves who it is. It is made from the server's token, so that whoever
// has that token knows it, every server that shares the token has the same one, and nothing else
// has to be kept or handed out; tokens that are made from the server's name it by its fingerprint.
// By OpenSSL. Pure; thread safe.
#ifndef CADRE_BASE_TOKENS_SERVER_KEY_H_
#define CADRE_BASE_TOKENS_SERVER_KEY_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

// In hexadecimal digits.
inline constexpr size_t kFingerprintDigits = 64;

// Whether a key can be made from it: it is what RandomToken() gives. From another secret anybody
// who sees the key could guess at the secret.
bool MakesServerKey(absl::string_view secret);

// An Ed25519 key and a certificate of its own, without an end.
struct ServerIdentity {
  std::string key_pem;
  std::string certificate_pem;
};
// Also of a secret that makes none, for who shows the certificate to nobody.
ServerIdentity MakeServerIdentity(absl::string_view secret);

// SHA-256 of the public key (its SubjectPublicKeyInfo, in DER), in lower-case digits. Empty: this
// is no certificate.
std::string KeyFingerprint(absl::string_view certificate_pem);

// That of the secret's key; empty: it makes none.
std::string ServerKeyOf(absl::string_view secret);

}  // namespace cadre

#endif  // CADRE_BASE_TOKENS_SERVER_KEY_H_
