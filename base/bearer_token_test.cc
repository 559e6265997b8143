#include "base/bearer_token.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_matchers.h"
#include "base/tokens/server_key.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kSecret[] = "0123456789abcdef0123456789abcdef";
constexpr uint64_t kServer = 0x0123456789abcdef;
constexpr uint64_t kOtherServer = 7;
constexpr absl::StatusCode kUnknown = absl::StatusCode::kUnauthenticated;

absl::Time End() { return absl::FromUnixSeconds(1800000000); }

TEST(BearerTokenTest, TheServersOwnTokenIsAnAdministratorsAndHasNoEnd) {
  ASSERT_TRUE(VerifiedBearer(kSecret, kSecret).has_value());
  EXPECT_EQ(VerifiedBearer(kSecret, kSecret)->kind, Bearer::Kind::kAdministrator);
  EXPECT_OK(CheckTokenServer(*VerifiedBearer(kSecret, kSecret), kServer));
  EXPECT_OK(CheckTokenServer(*VerifiedBearer(kSecret, kSecret), kOtherServer));
  EXPECT_OK(CheckTokenExpiry(*VerifiedBearer(kSecret, kSecret), End() + absl::Hours(1000000)));
  EXPECT_FALSE(VerifiedBearer(kSecret, "0123456789abcdef").has_value());
  EXPECT_FALSE(VerifiedBearer(kSecret, "").has_value());
}

TEST(BearerTokenTest, ATokenSaysWhoseItIs) {
  const std::string alice = UserToken(kSecret, kServer, "alice", End());
  EXPECT_THAT(alice, StartsWith("user:alice:"));
  ASSERT_TRUE(VerifiedBearer(kSecret, alice).has_value());
  EXPECT_EQ(VerifiedBearer(kSecret, alice)->kind, Bearer::Kind::kUser);
  EXPECT_EQ(VerifiedBearer(kSecret, alice)->user, "alice");
  EXPECT_EQ(VerifiedBearer(kSecret, alice)->ends, End());
  const auto part = VerifiedBearer(kSecret, PartToken(kSecret, kServer, 12, "mnist"));
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(part->kind, Bearer::Kind::kPart);
  EXPECT_EQ(part->part, 12u);
  EXPECT_EQ(part->job, "mnist");
  const auto reader = VerifiedBearer(kSecret, ReadToken(kSecret, kServer, End()));
  ASSERT_TRUE(reader.has_value());
  EXPECT_EQ(reader->kind, Bearer::Kind::kReader);
  for (const auto& bearer : {*part, *reader}) EXPECT_EQ(bearer.server_id, kServer);
}

// Tokens of 0.2 named no server, and users' had no expiry.
TEST(BearerTokenTest, ThoseThatNameNoServerAreNotValid) {
  for (const char* token :
       {"part:12:mnist:a96dc1af43cd3727a702f749546ed54f4e68bcfb8335f5871b2af89436f6895a",
        "user:alice:7cfd7689ca1fc0511c9da15d790db8bc2d287b36ba9102c310001ce37a8676f9"}) {
    EXPECT_FALSE(VerifiedBearer(kSecret, token).has_value()) << token;
  }
}

// Computed by: printf user:alice:... | openssl dgst -sha256 -hmac KEY.
TEST(BearerTokenTest, TheProofIsAnHmacSha256) {
  EXPECT_EQ(UserToken(kSecret, kServer, "alice", End()),
            "user:alice:0123456789abcdef:1800000000:"
            "c17884251dc58f670b6f82978e3b60c30a41a865ee2e68541538926079efdbe4");
}

// Fault (access): A user's token has expired -> It is refused for anything new, and the error says
// when it expired and how to make another token
TEST(BearerTokenTest, AUsersTokenEndsAndSaysHowToGetAnother) {
  const Bearer alice = *VerifiedBearer(kSecret, UserToken(kSecret, kServer, "alice", End()));
  EXPECT_OK(CheckTokenExpiry(alice, End() - absl::Milliseconds(1)));
  EXPECT_THAT(
      CheckTokenExpiry(alice, End()),
      StatusIs(kUnknown,
               AllOf(HasSubstr("the token of user alice expired at 2027-01-15 08:00:00 UTC"),
                     HasSubstr("cadre token new FILE --force --user alice --token-file"))));
  EXPECT_THAT(
      CheckTokenExpiry(*VerifiedBearer(kSecret, ReadToken(kSecret, kServer, End())), End()),
      StatusIs(kUnknown, HasSubstr("cadre token new FILE --force --read-only --token-file")));
  // A part's ends with the part, however long that takes.
  EXPECT_OK(CheckTokenExpiry(*VerifiedBearer(kSecret, PartToken(kSecret, kServer, 12, "mnist")),
                             End() + absl::Hours(1000000)));
}

TEST(BearerTokenTest, WhatWasMadeForAnotherStateOfTheServerFitsNoMore) {
  for (const std::string& token :
       {UserToken(kSecret, kServer, "alice", End()), ReadToken(kSecret, kServer, End()),
        PartToken(kSecret, kServer, 12, "mnist")}) {
    const Bearer bearer = *VerifiedBearer(kSecret, token);
    EXPECT_OK(CheckTokenServer(bearer, kServer));
    EXPECT_THAT(CheckTokenServer(bearer, kOtherServer),
                StatusIs(kUnknown, HasSubstr("before this one lost its state")));
    // Nor can it be made to.
    EXPECT_FALSE(VerifiedBearer(
        kSecret, absl::StrReplaceAll(token, {{"0123456789abcdef:", "0000000000000007:"}})));
  }
}

TEST(BearerTokenTest, WhatWasChangedOrMadeFromAnotherSecretIsNobodys) {
  const std::string alice = UserToken(kSecret, kServer, "alice", End());
  std::string forged = alice;
  forged.replace(5, 5, "bobby");
  EXPECT_FALSE(VerifiedBearer(kSecret, forged).has_value());
  EXPECT_FALSE(VerifiedBearer(kSecret, absl::StrReplaceAll(alice, {{"1800000000", "1900000000"}})));
  EXPECT_FALSE(VerifiedBearer("another secret of 32 characters.", alice));
  EXPECT_FALSE(VerifiedBearer(kSecret, alice.substr(0, alice.size() - 1)).has_value());
  EXPECT_FALSE(VerifiedBearer(kSecret, "user:alice:").has_value());
  EXPECT_FALSE(VerifiedBearer(kSecret, "user:alice:0123456789abcdef:1800000000:").has_value());
  // A user's token, used as the secret, does not yield valid tokens.
  EXPECT_FALSE(VerifiedBearer(kSecret, UserToken(alice, kServer, "root", End())).has_value());
  // Users' tokens of earlier versions, which had no expiry and were valid for every state.
  EXPECT_FALSE(VerifiedBearer(
      kSecret, "user:alice:7cfd7689ca1fc0511c9da15d790db8bc2d287b36ba9102c310001ce37a8676f9"));
}

// From a secret that `cadre token new` made.
constexpr char kRandom[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

TEST(BearerTokenTest, ATokenNamesTheKeyOfItsServer) {
  const std::string key = ServerKeyOf(kRandom);
  EXPECT_EQ(ServerKeyInToken(kRandom), key);
  for (const std::string& token :
       {UserToken(kRandom, kServer, "alice", End()), ReadToken(kRandom, kServer, End()),
        PartToken(kRandom, kServer, 12, "mnist")}) {
    EXPECT_EQ(ServerKeyInToken(token), key) << token;
    ASSERT_TRUE(VerifiedBearer(kRandom, token).has_value()) << token;
    EXPECT_EQ(VerifiedBearer(kRandom, token)->server_id, kServer);
    // With another key, or none, the proof no longer matches.
    EXPECT_FALSE(VerifiedBearer(
        kRandom, absl::StrReplaceAll(token, {{key, ServerKeyOf(std::string(64, '0'))}})));
    EXPECT_FALSE(VerifiedBearer(kRandom, absl::StrReplaceAll(token, {{key + ":", ""}})));
  }
  EXPECT_EQ(VerifiedBearer(kRandom, UserToken(kRandom, kServer, "alice", End()))->user, "alice");
  // No key is made from a secret that a user chose.
  EXPECT_EQ(ServerKeyInToken(kSecret), "");
  EXPECT_EQ(ServerKeyInToken(UserToken(kSecret, kServer, "alice", End())), "");
  EXPECT_EQ(ServerKeyInToken(""), "");
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
