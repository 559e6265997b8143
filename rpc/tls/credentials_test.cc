#include "rpc/tls/credentials.h"

#include <string>

#include "base/bearer_token.h"
#include "base/status_matchers.h"
#include "base/token.h"

namespace cadre::rpc {
namespace {

using ::testing::HasSubstr;

constexpr char kChosen[] = "a secret that somebody chose";

TransportSecurity ByToken() {
  TransportSecurity security;
  security.by_token = true;
  return security;
}

TEST(CredentialsTest, NeitherFilesNorTokenMeansNoEncryption) {
  EXPECT_OK(ServerSecurity::Make(TransportSecurity(), kChosen));
  EXPECT_OK(MakeChannelCredentials(TransportSecurity(), kChosen));
}

TEST(CredentialsTest, ATokenThatNamesNoKeyProtectsNothing) {
  EXPECT_THAT(ServerSecurity::Make(ByToken(), kChosen),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cadre token new FILE")));
  EXPECT_THAT(MakeChannelCredentials(ByToken(), kChosen),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cadre token new FILE")));
  const std::string secret = RandomToken();
  const std::string users = UserToken(secret, 7, "ann", absl::InfiniteFuture());
  EXPECT_OK(ServerSecurity::Make(ByToken(), secret));
  EXPECT_OK(MakeChannelCredentials(ByToken(), secret));
  EXPECT_OK(MakeChannelCredentials(ByToken(), users));
  // Only the server's own token makes it.
  EXPECT_THAT(ServerSecurity::Make(ByToken(), users), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CredentialsTest, AnAbsentDirectoryIsNamed) {
  TransportSecurity security;
  security.tls_dir = "/nonexistent";
  EXPECT_THAT(ServerSecurity::Make(security, ""),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("/nonexistent/ca.pem")));
  EXPECT_THAT(MakeChannelCredentials(security),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("/nonexistent/ca.pem")));
}

TEST(CredentialsTest, OnlyAnotherTokenIsNew) {
  const std::string secret = RandomToken();
  const auto security = ServerSecurity::Make(ByToken(), secret);
  ASSERT_OK(security);
  EXPECT_EQ((*security)->Renew(secret).value(), false);
  EXPECT_EQ((*security)->Renew(RandomToken()).value(), true);
  EXPECT_THAT((*security)->Renew(kChosen), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace cadre::rpc
