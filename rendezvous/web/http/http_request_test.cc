#include "rendezvous/web/http/http_request.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::web {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(HttpRequestTest, PathQueryAndHeaders) {
  const auto request = ParseHttpRequest(
      "GET /api/jobs/a%2fb?rank=3&stream=std%20out&bare HTTP/1.1\r\n"
      "host:  localhost:80 \r\nAUTHORIZATION: bearer abc\r\nX-Other: a: b");
  ASSERT_OK(request);
  EXPECT_EQ(request->method, "GET");
  EXPECT_EQ(request->path, "/api/jobs/a/b");
  EXPECT_EQ(request->query.at("rank"), "3");
  EXPECT_EQ(request->query.at("stream"), "std out");
  EXPECT_EQ(request->query.at("bare"), "");
  EXPECT_EQ(request->host, "localhost:80");
  EXPECT_EQ(TokenOf(*request), "abc");
}

TEST(HttpRequestTest, WhatIsNoRequestIsRefused) {
  for (const char* head :
       {"", "GET /", "GET / HTTP/2", "GET  / HTTP/1.1", "GET x HTTP/1.1", "GET /% HTTP/1.1",
        "GET /%2 HTTP/1.1", "GET /%zz HTTP/1.1", "GET / HTTP/1.1\r\nno colon",
        "GET / HTTP/1.1\r\n: empty", "GET / HTTP/1.1\r\nfolded\r\n : x",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b", "\x16\x03\x01"}) {
    EXPECT_THAT(ParseHttpRequest(head), StatusIs(absl::StatusCode::kInvalidArgument)) << head;
  }
  for (const char* head :
       {"POST / HTTP/1.1", "DELETE /x HTTP/1.1", "GET / HTTP/1.1\r\nContent-Length: 5",
        "GET / HTTP/1.1\r\nTransfer-Encoding: chunked"}) {
    EXPECT_THAT(ParseHttpRequest(head), StatusIs(absl::StatusCode::kUnimplemented)) << head;
  }
}

TEST(HttpRequestTest, OnlyLoopbacksOwnNamesAreLoopback) {
  const auto host = [](const std::string& name) {
    return *ParseHttpRequest(absl::StrCat("GET / HTTP/1.1\r\nHost: ", name));
  };
  for (const char* name : {"localhost", "LocalHost:8080", "127.0.0.1:1", "[::1]:99", "[::1]"}) {
    EXPECT_TRUE(HostIsLoopback(host(name), "127.0.0.1")) << name;
  }
  EXPECT_TRUE(HostIsLoopback(host("127.0.0.5:80"), "127.0.0.5"));
  for (const char* name : {"", "evil.example", "localhost.evil.example:80", "127.0.0.1.nip.io"}) {
    EXPECT_FALSE(HostIsLoopback(host(name), "127.0.0.1")) << name;
  }
}

TEST(HttpRequestTest, ABrowserSaysWhosePageAsks) {
  const auto from = [](const std::string& site) {
    return IsFromAnotherSite(
        *ParseHttpRequest(absl::StrCat("GET / HTTP/1.1\r\nSec-Fetch-Site: ", site)));
  };
  EXPECT_TRUE(from("cross-site"));
  EXPECT_TRUE(from("same-site"));
  EXPECT_FALSE(from("same-origin"));
  EXPECT_FALSE(from("none"));
  EXPECT_FALSE(IsFromAnotherSite(*ParseHttpRequest("GET / HTTP/1.1")));
}

TEST(HttpRequestTest, TokenNeedsItsScheme) {
  HttpRequest request;
  EXPECT_EQ(TokenOf(request), std::nullopt);
  request.authorization = "secret";
  EXPECT_EQ(TokenOf(request), std::nullopt);
  request.authorization = "Basic secret";
  EXPECT_EQ(TokenOf(request), std::nullopt);
  request.authorization = "Bearer secret";
  EXPECT_EQ(TokenOf(request), "secret");
}

TEST(ReplyHead, EveryReplyIsFramedByNobodyAndKeptByNobody) {
  EXPECT_THAT(ReplyHead(200, "text/plain"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"),
                    HasSubstr("frame-ancestors 'none'"), HasSubstr("Cache-Control: no-store\r\n"),
                    Not(HasSubstr("\r\n\r\n"))));
}

TEST(ReplyHead, SomeRefusalsSayWhatWouldDo) {
  EXPECT_THAT(ReplyHead(401, "text/plain"), HasSubstr("WWW-Authenticate: Bearer\r\n"));
  EXPECT_THAT(ReplyHead(405, "text/plain"), HasSubstr("Allow: GET, HEAD\r\n"));
}

}  // namespace

}  // namespace cadre::web
