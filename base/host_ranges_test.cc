#include "base/host_ranges.h"

#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HostRangesTest, Expanded) {
  EXPECT_THAT(*ExpandHosts("n1"), ElementsAre("n1"));
  EXPECT_THAT(*ExpandHosts("n[01-03,07],g-a[1-2]"),
              ElementsAre("n01", "n02", "n03", "n07", "g-a1", "g-a2"));
  EXPECT_THAT(*ExpandHosts("n[9-10]"), ElementsAre("n9", "n10"));
  EXPECT_THAT(*ExpandHosts("n[098-101]x"), ElementsAre("n098x", "n099x", "n100x", "n101x"));
  EXPECT_THAT(*ExpandHosts("r[1-2]n[1,3]"), ElementsAre("r1n1", "r1n3", "r2n1", "r2n3"));
  EXPECT_THAT(*ExpandHosts("[1-2]"), ElementsAre("1", "2"));
}

TEST(HostRangesTest, Malformed_IsRefused) {
  for (const char* bad : {"", "n[", "n]", "n[]", "n[1-", "n[3-1]", "a,,b", "a,", "n[1-2", "n[[1]]",
                          "n[a-b]", "n[1-9999999999999999999]"}) {
    EXPECT_THAT(ExpandHosts(bad), StatusIs(absl::StatusCode::kInvalidArgument)) << bad;
  }
  EXPECT_THAT(ExpandHosts(std::string(kMaxHostNameBytes + 1, 'n') + "[1-9]"),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(HostRangesTest, Bounded) {
  EXPECT_EQ(ExpandHosts("n[1-100000]")->size(), kMaxExpandedHosts);
  for (const char* bad : {"n[0-100000]", "n[1-60000,1-60000]", "n[1-999]m[1-999]", "n[1-99999],a,b",
                          "n[0-999999999999999999]"}) {
    EXPECT_THAT(ExpandHosts(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 100000 names")))
        << bad;
  }
}

// What `scontrol show hostlist` of Slurm 22.05 prints.
TEST(HostRangesTest, Compressed) {
  const struct {
    const char* hosts;
    const char* list;
  } kCases[] = {
      {"n1,n2,n3,n5,m07", "n[1-3,5],m07"},
      {"n1,m07,n2", "n1,m07,n2"},
      {"n9,n10", "n[9-10]"},
      {"n09,n10", "n[09-10]"},
      {"n9,n010", "n[9,010]"},
      {"n099,n100", "n[099-100]"},
      {"n08,n09,n10,n100", "n[08-10,100]"},
      {"n1,n1", "n[1,1]"},
      {"n5,n3,n4", "n[5,3-4]"},
      {"n3,n2,n1", "n[3,2,1]"},
      {"n01,n1", "n[01,1]"},
      {"n007", "n007"},
      {"a1b2,a1b3", "a1b[2-3]"},
      {"x,y", "x,y"},
      {"n1x,n2x", "n1x,n2x"},
      {"1,2,3", "[1-3]"},
      {"node-1,node-2", "node-[1-2]"},
      {"n4294967296,n4294967297", "n[4294967296-4294967297]"},
  };
  for (const auto& c : kCases) {
    const std::vector<std::string> hosts = absl::StrSplit(c.hosts, ',');
    EXPECT_EQ(CompressHosts(hosts), c.list);
    EXPECT_EQ(*ExpandHosts(c.list), hosts) << c.list;
  }
  EXPECT_EQ(CompressHosts({}), "");
  EXPECT_EQ(CompressHosts({"n1234567890123456789", "n1234567890123456790"}),
            "n1234567890123456789,n1234567890123456790");
}

TEST(HostRangesTest, Counts) {
  EXPECT_THAT(*ExpandCounts("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(*ExpandCounts("4"), ElementsAre(4));
  for (const char* bad : {"", "x", "2(x", "2(x3", "2(3)", "2(x99999999)", "1,"}) {
    EXPECT_THAT(ExpandCounts(bad), StatusIs(absl::StatusCode::kInvalidArgument)) << bad;
  }
  EXPECT_EQ(CompressCounts({2, 2, 2, 1}), "2(x3),1");
  EXPECT_EQ(CompressCounts({4}), "4");
  EXPECT_EQ(CompressCounts({1, 2, 1}), "1,2,1");
  EXPECT_EQ(CompressCounts({}), "");
}

}  // namespace
}  // namespace cadre
