#include "rendezvous/web/http/reply_head.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::web {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

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
