#include "launcher/environment/host_list.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;

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

}  // namespace
}  // namespace cadre::launcher
