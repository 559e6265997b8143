// On an ordinary directory: what the files of a real cgroup say is shown by the supervisor's tests.
#include "agent/supervisor/processes/cgroup_files.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string MakeDirectory() {
  std::string path = "/tmp/cadre_cgroup_XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

TEST(CgroupFiles, AreReadWithWhatLiesBelow) {
  const std::string root = MakeDirectory();
  ASSERT_EQ(mkdir((root + "/b").c_str(), 0755), 0);
  ASSERT_EQ(mkdir((root + "/a").c_str(), 0755), 0);
  std::ofstream(root + "/cgroup.procs") << "7\n";
  std::ofstream(root + "/b/cgroup.procs") << "8\n9\n";
  EXPECT_THAT(Subdirectories(root), ElementsAre("a", "b"));
  EXPECT_THAT(CgroupProcesses(root), ElementsAre(7, 8, 9));
  EXPECT_FALSE(RemoveCgroup(root)) << "a file is left in it";
  EXPECT_THAT(Subdirectories(root), ElementsAre("b")) << "what could go is gone";
  std::string command = "rm -r " + root;
  EXPECT_EQ(system(command.c_str()), 0);
  EXPECT_TRUE(RemoveCgroup(root)) << "there is nothing";
  EXPECT_FALSE(KillCgroup(root));
  EXPECT_THAT(CgroupProcesses(root), IsEmpty());
}

TEST(CgroupFiles, ANumberIsThatOfTheWholeKey) {
  const std::string events = "populated_ever 3\npopulated 1\nfrozen x\n";
  EXPECT_EQ(ValueOf(events, "populated"), 1u);
  EXPECT_EQ(ValueOf(events, "frozen"), std::nullopt);
  EXPECT_EQ(ValueOf(events, "oom_kill"), std::nullopt);
}

TEST(CgroupFiles, AFileIsReadToItsLimit) {
  const std::string root = MakeDirectory();
  std::ofstream(root + "/file") << std::string(100000, 'x');
  EXPECT_EQ(ReadKernelFile(root + "/file")->size(), 64u << 10);
  EXPECT_EQ(ReadKernelFile(root + "/none"), std::nullopt);
}

}  // namespace
}  // namespace cadre::supervisor
