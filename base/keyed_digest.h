// HMAC-SHA256 (RFC 2104, FIPS 180-4), by OpenSSL. Pure.
#ifndef CADRE_BASE_KEYED_DIGEST_H_
#define CADRE_BASE_KEYED_DIGEST_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

inline constexpr size_t kKeyedDigestBytes = 32;

// kKeyedDigestBytes bytes, which only who knows `key` can compute. Compare with
// EqualConstantTime() (token.h).
std::string KeyedDigest(absl::string_view key, absl::string_view text);

}  // namespace cadre

#endif  // CADRE_BASE_KEYED_DIGEST_H_
