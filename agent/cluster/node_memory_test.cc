#include "agent/cluster/node_memory.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "rpc/node_memory.h"

namespace cadre::agent {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMib = 1 << 20;

// A machine whose memory /proc gives as 63.9 GiB.
class FindNodeMemoryTest : public ::testing::Test {
 protected:
  FindNodeMemoryTest() : root_(::testing::TempDir() + "/memory_XXXXXX") {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
    Write("/proc/meminfo", "MemTotal:  67003596 kB\nMemFree:  1 kB\nMemAvailable:  2 kB\n");
  }
  ~FindNodeMemoryTest() override { fs::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  uint64_t Found() const { return FindNodeMemory(root_) / kMib; }

  std::string root_;
};

TEST_F(FindNodeMemoryTest, WithoutALimitItIsTheMachinesInRoundNumbers) {
  EXPECT_EQ(Found(), 65280u);
  Write("/proc/self/cgroup", "0::/system.slice/cadre-agent.service\n");
  Write("/sys/fs/cgroup/system.slice/cadre-agent.service/memory.max", "max\n");
  EXPECT_EQ(Found(), 65280u);
}

TEST_F(FindNodeMemoryTest, ALimitOfItsCgroupOrOfOneAboveIsLess) {
  Write("/proc/self/cgroup", "0::/system.slice/cadre-agent.service\n");
  Write("/sys/fs/cgroup/system.slice/cadre-agent.service/memory.max", "34359738368\n");
  EXPECT_EQ(Found(), 32768u);
  Write("/sys/fs/cgroup/system.slice/memory.max", "8589934592\n");
  EXPECT_EQ(Found(), 8192u);
  // A container that sees its own cgroup as the root.
  Write("/sys/fs/cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(Found(), 1024u);
}

TEST_F(FindNodeMemoryTest, CgroupV1AndTheHybridMountHaveLimitsToo) {
  Write("/proc/self/cgroup", "4:memory:/docker/a\n0::/docker/a\n");
  Write("/sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Found(), 65280u);
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
  EXPECT_EQ(Found(), 2048u);
  Write("/sys/fs/cgroup/unified/docker/a/memory.max", "1073741824\n");
  EXPECT_EQ(Found(), 1024u);
}

TEST_F(FindNodeMemoryTest, WhatProcDoesNotTellIsNotCounted) {
  Write("/proc/meminfo", "");
  EXPECT_EQ(Found(), 0u);
}

TEST_F(FindNodeMemoryTest, ASmallMachineKeepsAllOfItAndNoneHasTooMuch) {
  Write("/proc/meminfo", "MemTotal:  102400 kB\nMemAvailable:  2 kB\n");
  EXPECT_EQ(Found(), 100u);
  Write("/proc/meminfo", "MemTotal:  999999999999 kB\nMemAvailable:  2 kB\n");
  EXPECT_EQ(FindNodeMemory(root_), rpc::kMaxNodeMemory);
}

TEST(FindNodeMemory, ThisMachineHasSome) { EXPECT_GT(FindNodeMemory(), 0u); }

}  // namespace
}  // namespace cadre::agent
