#include "launcher/attach/security.h"

#include "base/bearer_token.h"
#include "base/status_matchers.h"
#include "base/token.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

constexpr char kChosen[] = "a secret that somebody chose";

TEST(SecurityTest, ATokenThatNamesAKeyMeansTlsWhereverTheServerIs) {
  const std::string secret = RandomToken();
  for (const std::string& token : {secret, UserToken(secret, 7, "ann", absl::InfiniteFuture())}) {
    for (const bool loopback : {false, true}) {
      const auto security = SecurityOf("", false, {token, "file"}, loopback);
      ASSERT_OK(security);
      EXPECT_TRUE(security->by_token);
      EXPECT_FALSE(security->insecure);
    }
  }
}

TEST(SecurityTest, AChosenSecretIsForLoopbackAlone) {
  const auto here = SecurityOf("", false, {kChosen, "file"}, /*loopback=*/true);
  ASSERT_OK(here);
  EXPECT_FALSE(here->by_token);
  EXPECT_THAT(SecurityOf("", false, {kChosen, "file"}, /*loopback=*/false),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("make one with 'cadre token new FILE' (a user's with --user), use "
                                 "certificates (--tls-dir)")));
}

TEST(SecurityTest, ALaunchersTokenFromAnAgentOfBeforeMeansClearText) {
  const auto security = SecurityOf("", false, {PartToken(RandomToken(), 0, 12, "job")}, false);
  ASSERT_OK(security);
  EXPECT_FALSE(security->by_token);
}

TEST(SecurityTest, FlagsSayOtherwise) {
  const auto insecure = SecurityOf("", true, {RandomToken()}, /*loopback=*/false);
  ASSERT_OK(insecure);
  EXPECT_FALSE(insecure->by_token);
  EXPECT_TRUE(insecure->insecure);
  // A server serves TLS beside that, where it has a key.
  EXPECT_TRUE(ForServer(*insecure, {RandomToken()}).by_token);
  EXPECT_FALSE(ForServer(*insecure, {kChosen}).by_token);
  const auto mutual = SecurityOf("certificates", false, {kChosen}, /*loopback=*/false);
  ASSERT_OK(mutual);
  EXPECT_EQ(mutual->tls_dir, "certificates");
  EXPECT_FALSE(mutual->by_token);
  EXPECT_THAT(SecurityOf("certificates", true, {kChosen}, false),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("leave one of them out")));
}

}  // namespace
}  // namespace cadre::launcher
