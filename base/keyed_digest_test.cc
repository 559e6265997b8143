#include "base/keyed_digest.h"

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

// RFC 4231, test case 2.
TEST(KeyedDigestTest, IsHmacSha256) {
  EXPECT_EQ(absl::BytesToHexString(KeyedDigest("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(KeyedDigestTest, DiffersWithTheKey) { EXPECT_NE(KeyedDigest("a", ""), KeyedDigest("b", "")); }

// RFC 5869, test cases 1 and 3: their first 32 bytes.
TEST(KeyedDigestTest, KeysAreDerivedByHkdf) {
  const std::string key(22, '\x0b');
  EXPECT_EQ(
      absl::BytesToHexString(DeriveKey(key, absl::HexStringToBytes("000102030405060708090a0b0c"),
                                       absl::HexStringToBytes("f0f1f2f3f4f5f6f7f8f9"))),
      "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
  EXPECT_EQ(absl::BytesToHexString(DeriveKey(key, "", "")),
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d");
}

}  // namespace
}  // namespace cadre
