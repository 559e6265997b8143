#include "launcher/environment/hostfile.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

std::string Read(absl::string_view text) {
  const auto hosts = ParseHostfile(text, "hosts");
  if (!hosts.ok()) return std::string(hosts.status().message());
  std::string all;
  for (const HostfileHost& host : *hosts) {
    absl::StrAppend(&all, host.destination, "/", host.name, "/", host.slots, " ");
  }
  return all;
}

TEST(HostfileTest, Forms) {
  EXPECT_EQ(Read("n1\n\n# all of them\n  n2 slots=4 # big\r\nme@n3 slots=2 max_slots=8"),
            "n1/n1/0 n2/n2/4 me@n3/n3/2 ");
  EXPECT_EQ(Read("n1\nn1\nn2 slots=2\nn2 slots=3\n"), "n1/n1/2 n2/n2/5 ");
  EXPECT_EQ(Read("n1:2\nme@n2:4\nn1:3\nfd00::7 slots=2"), "n1/n1/5 me@n2/n2/4 fd00::7/fd00::7/2 ");
}

TEST(HostfileTest, Malformed_NamesTheLine) {
  EXPECT_EQ(Read("n1\n-oProxyCommand=x\n"),
            "hosts:2: expected HOST or USER@HOST, got '-oProxyCommand=x'");
  EXPECT_EQ(Read("n1 slots=none"), "hosts:1: expected slots=N, got 'slots=none'");
  EXPECT_EQ(Read("n1 cores=3"), "hosts:1: expected slots=N, got 'cores=3'");
  EXPECT_EQ(Read("n1\nn2 slots=2 slots=3"), "hosts:2: the number of slots comes twice");
  EXPECT_EQ(Read("n1:2 slots=3"), "hosts:1: the number of slots comes twice");
  EXPECT_EQ(Read("n1:0"), "hosts:1: expected HOST:SLOTS, got 'n1:0'");
  EXPECT_EQ(Read("n1:x"), "hosts:1: expected HOST:SLOTS, got 'n1:x'");
  EXPECT_THAT(Read("a@b@c"), HasSubstr("hosts:1"));
  EXPECT_THAT(Read("n1;reboot"), HasSubstr("hosts:1"));
  EXPECT_EQ(Read("# nobody\n"), "hosts: expected a host per line, found none");
}

TEST(HostfileTest, Bounded) {
  std::string text;
  for (size_t i = 0; i <= kMaxHostfileHosts; ++i) absl::StrAppend(&text, "n", i, "\n");
  EXPECT_THAT(Read(text), HasSubstr("at most 4096 hosts"));
}

}  // namespace
}  // namespace cadre::launcher
