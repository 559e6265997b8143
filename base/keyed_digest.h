// HMAC-SHA256 (RFC 2104, FIPS 180-4) and keys made by it (HKDF, RFC 5869), by OpenSSL. Pure.
#ifndef CADRE_BASE_KEYED_DIGEST_H_
#define CADRE_BASE_KEYED_DIGEST_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

inline constexpr size_t kKeyedDigestBytes = 32;

// Returns kKeyedDigestBytes bytes, which cannot be computed without `key`. Compare them with
// EqualConstantTime() (token.h).
std::string KeyedDigest(absl::string_view key, absl::string_view text);

// Returns kKeyedDigestBytes bytes for `purpose`. Neither `key` nor the keys for other purposes or
// with another `salt` can be derived from them.
std::string DeriveKey(absl::string_view key, absl::string_view salt, absl::string_view purpose);

}  // namespace cadre

#endif  // CADRE_BASE_KEYED_DIGEST_H_
