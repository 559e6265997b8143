#include "base/keyed_digest.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "absl/strings/str_cat.h"

namespace cadre {

std::string KeyedDigest(absl::string_view key, absl::string_view text) {
  std::string digest(kKeyedDigestBytes, '\0');
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(),
       reinterpret_cast<unsigned char*>(&digest[0]), nullptr);
  return digest;
}

std::string DeriveKey(absl::string_view key, absl::string_view salt, absl::string_view purpose) {
  // HKDF's first block, which has all the bytes that are needed.
  return KeyedDigest(KeyedDigest(salt, key), absl::StrCat(purpose, "\x01"));
}

}  // namespace cadre
