#include "launcher/attach/http_flag.h"

#include "base/status_matchers.h"

namespace cadre::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ReadHttpTest, LoopbackNeedsNoToken) {
  const auto options = ReadHttp("127.0.0.1:8080", "", "");
  ASSERT_OK(options);
  EXPECT_EQ(options->host, "127.0.0.1");
  EXPECT_EQ(options->port, 8080);
  EXPECT_EQ(options->token, "");
  EXPECT_EQ(ReadHttp("127.0.0.1", "", "")->port, kDefaultHttpPort);
}

// A cluster's users may be on the server's machine too.
TEST(ReadHttpTest, WhereTheServerWantsATokenReadersNeedItOnLoopbackToo) {
  const auto options = ReadHttp("127.0.0.1:8080", "0123456789abcdef", "/tls");
  ASSERT_OK(options);
  EXPECT_EQ(options->token, "0123456789abcdef");
}

TEST(ReadHttpTest, OffLoopbackItDoes) {
  EXPECT_THAT(ReadHttp("0.0.0.0:8080", "", ""),
              StatusIs(kInvalid, AllOf(HasSubstr("--http: 0.0.0.0"), HasSubstr("--token-file"))));
  const auto options = ReadHttp("0.0.0.0:8080", "0123456789abcdef", "");
  ASSERT_OK(options);
  EXPECT_EQ(options->token, "0123456789abcdef");
  EXPECT_THAT(ReadHttp("0.0.0.0:8080", "0123456789abcdef", "/tls"),
              StatusIs(kInvalid, HasSubstr("encrypted")));
}

TEST(ReadHttpTest, WhatIsNoAddressIsNamed) {
  EXPECT_THAT(ReadHttp("127.0.0.1:x", "", ""), StatusIs(kInvalid, HasSubstr("--http: ")));
}

}  // namespace
}  // namespace cadre::launcher
