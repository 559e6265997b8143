#include "base/tokens/server_key.h"

#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr char kSecret[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

// Computed by: the HMAC-SHA256 of "cadre server key 1" as the seed of RFC 8410's PKCS #8, then
// openssl pkey -inform der -pubout -outform der | sha256sum.
TEST(ServerKeyTest, ASecretHasOneKey) {
  EXPECT_EQ(ServerKeyOf(kSecret),
            "ec3106ad1771ec02ca748d72f17cb41fbcab2094c3bf2237b8960f5e3ca49df7");
  EXPECT_NE(ServerKeyOf(RandomToken()), ServerKeyOf(kSecret));
}

TEST(ServerKeyTest, TheCertificateIsAlwaysTheSameAndShowsTheKey) {
  const ServerIdentity identity = MakeServerIdentity(kSecret);
  EXPECT_EQ(MakeServerIdentity(kSecret).certificate_pem, identity.certificate_pem);
  EXPECT_EQ(KeyFingerprint(identity.certificate_pem), ServerKeyOf(kSecret));
  EXPECT_THAT(identity.key_pem, HasSubstr("BEGIN PRIVATE KEY"));
  EXPECT_EQ(KeyFingerprint(identity.key_pem), "");
  EXPECT_EQ(KeyFingerprint("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), "");
}

TEST(ServerKeyTest, OnlyARandomTokenMakesOne) {
  EXPECT_TRUE(MakesServerKey(RandomToken()));
  for (const char* other : {"", "a secret that somebody chose", "00112233445566778899aabbccddeeff",
                            "00112233445566778899AABBCCDDEEFF00112233445566778899AABBCCDDEEFF",
                            "user:ann:0123456789abcdef:1800000000:0123456789abcdef0123456789a"}) {
    EXPECT_FALSE(MakesServerKey(other)) << other;
    EXPECT_EQ(ServerKeyOf(other), "");
  }
}

}  // namespace
}  // namespace cadre
