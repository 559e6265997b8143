#include "base/bearer_token.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::StartsWith;

constexpr char kSecret[] = "0123456789abcdef0123456789abcdef";

TEST(BearerTokenTest, TheServersOwnTokenIsAnAdministrators) {
  ASSERT_TRUE(BearerOf(kSecret, kSecret).has_value());
  EXPECT_EQ(BearerOf(kSecret, kSecret)->kind, Bearer::Kind::kAdministrator);
  EXPECT_FALSE(BearerOf(kSecret, "0123456789abcdef").has_value());
  EXPECT_FALSE(BearerOf(kSecret, "").has_value());
}

TEST(BearerTokenTest, ATokenSaysWhoseItIs) {
  const std::string alice = UserToken(kSecret, "alice");
  EXPECT_THAT(alice, StartsWith("user:alice:"));
  ASSERT_TRUE(BearerOf(kSecret, alice).has_value());
  EXPECT_EQ(BearerOf(kSecret, alice)->kind, Bearer::Kind::kUser);
  EXPECT_EQ(BearerOf(kSecret, alice)->user, "alice");
  const auto part = BearerOf(kSecret, PartToken(kSecret, 12, "mnist"));
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(part->kind, Bearer::Kind::kPart);
  EXPECT_EQ(part->part, 12u);
  EXPECT_EQ(part->job, "mnist");
}

// RFC 4231 has no such case; computed by: printf user:alice | openssl dgst -sha256 -hmac KEY.
TEST(BearerTokenTest, TheProofIsAnHmacSha256) {
  EXPECT_EQ(UserToken(kSecret, "alice"),
            "user:alice:7cfd7689ca1fc0511c9da15d790db8bc2d287b36ba9102c310001ce37a8676f9");
}

TEST(BearerTokenTest, WhatWasChangedOrMadeFromAnotherSecretIsNobodys) {
  std::string forged = UserToken(kSecret, "alice");
  forged.replace(5, 5, "bobby");
  EXPECT_FALSE(BearerOf(kSecret, forged).has_value());
  EXPECT_FALSE(BearerOf("another secret of 32 characters.", UserToken(kSecret, "alice")));
  std::string cut = UserToken(kSecret, "alice");
  cut.pop_back();
  EXPECT_FALSE(BearerOf(kSecret, cut).has_value());
  EXPECT_FALSE(BearerOf(kSecret, "user:alice:").has_value());
  // With a user's token as the secret one makes nothing that counts.
  EXPECT_FALSE(BearerOf(kSecret, UserToken(UserToken(kSecret, "alice"), "root")).has_value());
}

TEST(BearerTokenTest, UsersNames) {
  EXPECT_TRUE(IsUserName("alice.b-c_d@x"));
  EXPECT_FALSE(IsUserName(""));
  EXPECT_FALSE(IsUserName("a:b"));
  EXPECT_FALSE(IsUserName("a b"));
  EXPECT_FALSE(IsUserName(std::string(65, 'a')));
}

}  // namespace
}  // namespace cadre
