#include "launcher/environment/host_list.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HostListTest, Forms) {
  EXPECT_THAT(*ExpandHostList("n1"), ElementsAre("n1"));
  EXPECT_THAT(*ExpandHostList("n[01-03,07],g-a[1-2]"),
              ElementsAre("n01", "n02", "n03", "n07", "g-a1", "g-a2"));
  EXPECT_THAT(*ExpandHostList("n[9-10]"), ElementsAre("n9", "n10"));
  EXPECT_THAT(*ExpandHostList("n[098-101]x"), ElementsAre("n098x", "n099x", "n100x", "n101x"));
  EXPECT_THAT(*ExpandHostList("r[1-2]n[1,3]"), ElementsAre("r1n1", "r1n3", "r2n1", "r2n3"));
}

TEST(HostListTest, Malformed_IsRefused) {
  for (const char* bad : {"", "n[", "n]", "n[]", "n[1-", "n[3-1]", "a,,b", "a,", "n[1-2", "n[[1]]",
                          "n[0-99999999]", "n[1-999]m[1-999]", "n[a-b]"}) {
    EXPECT_THAT(ExpandHostList(bad), StatusIs(absl::StatusCode::kInvalidArgument)) << bad;
  }
}

TEST(TasksPerNodeTest, Forms) {
  EXPECT_THAT(*ExpandTasksPerNode("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(*ExpandTasksPerNode("4"), ElementsAre(4));
  for (const char* bad : {"", "x", "2(x", "2(x3", "2(3)", "2(x99999999)", "1,"}) {
    EXPECT_THAT(ExpandTasksPerNode(bad), StatusIs(absl::StatusCode::kInvalidArgument)) << bad;
  }
}

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
