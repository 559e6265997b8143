#include "agent/workers/port_owner.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "agent/torch_store/listener.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::HasSubstr;

TEST(PortOwner, TheProcessThatListens_IsNamed) {
  const std::string own = absl::StrCat("(pid ", getpid(), ")");
  for (const char* const at : {"127.0.0.1", "0.0.0.0", "::1", "::"}) {
    const auto listener = ListenAt(at, 0);
    if (absl::IsUnavailable(listener.status())) continue;  // a machine without IPv6
    ASSERT_OK(listener);
    EXPECT_THAT(WhoListensAt(at, PortOf(*listener)), HasSubstr(own)) << at;
    EXPECT_THAT(WhoListensAt("node1", PortOf(*listener)), HasSubstr(own)) << at;
  }
}

TEST(PortOwner, WhoListensAtAnotherAddress_IsNot) {
  const auto all = ListenAt("0.0.0.0", 0), one = ListenAt("127.0.0.1", 0);
  ASSERT_OK(all);
  ASSERT_OK(one);
  EXPECT_NE(WhoListensAt("127.0.0.2", PortOf(*all)), "");
  EXPECT_EQ(WhoListensAt("127.0.0.2", PortOf(*one)), "");
}

TEST(PortOwner, NobodyListens) {
  uint16_t port = 0;
  {
    const auto listener = ListenAt("127.0.0.1", 0);
    ASSERT_OK(listener);
    port = PortOf(*listener);
  }
  EXPECT_EQ(WhoListensAt("127.0.0.1", port), "");
}

}  // namespace
}  // namespace cadre::agent
