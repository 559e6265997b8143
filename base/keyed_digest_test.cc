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

}  // namespace
}  // namespace cadre
