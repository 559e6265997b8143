#include "launcher/slurm/node_address.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>

#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

// Of Slurm 22.05.
constexpr char kShown[] =
    "NodeName=n1 Arch=x86_64 CoresPerSocket=4 \n"
    "   CPUAlloc=0 CPUEfctv=4 CPUTot=4 CPULoad=0.1\n"
    "   NodeAddr=10.1.2.3 NodeHostName=host1 Version=22.05.8\n";

TEST(NodeAddressTest, OfAliases) {
  constexpr char kAliases[] = "ec0:1.2.3.4:foo,ec1:[fd00::7]:bar,ec10:1.2.3.5";
  EXPECT_EQ(AddressInAliases(kAliases, "ec0"), "1.2.3.4");
  EXPECT_EQ(AddressInAliases(kAliases, "ec1"), "fd00::7");
  EXPECT_EQ(AddressInAliases(kAliases, "ec10"), "1.2.3.5");
  EXPECT_EQ(AddressInAliases(kAliases, "ec"), "");
  EXPECT_EQ(AddressInAliases("", "ec0"), "");
  EXPECT_EQ(AddressInAliases("(null)", "ec0"), "");
  EXPECT_EQ(AddressInAliases("ec0:[", "ec0"), "");
}

TEST(NodeAddressTest, OfAShownNode) {
  EXPECT_EQ(AddressInShownNode(kShown, "n1"), "10.1.2.3");
  EXPECT_EQ(AddressInShownNode("NodeName=n1\n   NodeAddr=n1 NodeHostName=n1", "n1"), "");
  EXPECT_EQ(AddressInShownNode("Node n7 not found", "n7"), "");
}

TEST(NodeAddressTest, ScontrolIsAskedWhereTheAliasesDoNotSay) {
  const std::string directory = testing::TempDir() + "/bin_XXXXXX";
  std::string made = directory;
  ASSERT_NE(mkdtemp(made.data()), nullptr);
  std::ofstream(made + "/scontrol")
      << "#!/bin/sh\n[ \"$*\" = 'show node n1' ] || exit 1\ncat <<'EOF'\n"
      << kShown << "EOF\n";
  ASSERT_EQ(chmod((made + "/scontrol").c_str(), 0755), 0);
  setenv("PATH", (made + ":" + getenv("PATH")).c_str(), 1);
  EXPECT_EQ(SlurmNodeAddress("", "n1"), "10.1.2.3");
  EXPECT_EQ(SlurmNodeAddress("n1:10.9.9.9:x", "n1"), "10.9.9.9");
  EXPECT_EQ(SlurmNodeAddress("", "n2"), "");
}

}  // namespace
}  // namespace cadre::launcher
