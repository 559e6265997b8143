// Reading cgroup files, on ordinary directories and, for controllers, with real cgroups. Limits of
// groups are tested by agent/supervisor's groups_test.
#include "agent/supervisor/processes/cgroups.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/processes/cgroup_limits.h"
#include "agent/supervisor/processes/kernel_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

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

TEST(CgroupPlace, IsReadFromTheLineOfTheController) {
  constexpr char kHybrid[] = "4:cpu,memory:/docker/7\n1:name=systemd:/\n0::/user.slice:x\n";
  EXPECT_EQ(PathIn(kHybrid, "memory"), "/docker/7");
  EXPECT_EQ(PathIn(kHybrid, ""), "/user.slice:x");
  EXPECT_EQ(PathIn(kHybrid, "name=systemd"), "") << "the root";
  EXPECT_EQ(PathIn(kHybrid, "mem"), "") << "there is none of that name";
}

// Whether a cgroup v2 controller is available.

constexpr char kHeader[] = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n";

ControllerFiles Files(const std::string& kernel, const std::string& everywhere,
                      const std::string& here) {
  return {kHeader + kernel, everywhere, here, "/sys/fs/cgroup/user.slice"};
}

TEST(WhyWithout, SaysWhatStandsInTheWay) {
  EXPECT_EQ(WhyControllerUnusable("memory",
                                  Files("memory\t0\t9\t1\n", "cpu memory pids\n", "memory pids\n")),
            "");
  EXPECT_THAT(WhyControllerUnusable("memory", Files("memory\t0\t9\t1\n", "cpu memory\n", "cpu\n")),
              HasSubstr("/sys/fs/cgroup/user.slice is not given cgroup v2's memory controller"));
  EXPECT_THAT(
      WhyControllerUnusable("memory", Files("cpu\t0\t9\t1\nmemory\t0\t9\t0\n", "cpu\n", "")),
      HasSubstr("cgroup_enable=memory"));
  EXPECT_THAT(
      WhyControllerUnusable("pids", Files("memory\t0\t1\t1\npids\t8\t1\t1\n", "hugetlb\n", "")),
      HasSubstr("the pids controller is used by cgroup v1"));
  EXPECT_THAT(WhyControllerUnusable("pids", Files("", "memory\n", "memory\n")),
              HasSubstr("no pids controller"));
}

TEST(PassOn, WhereThereIsNoCgroupItSaysWhyNot) {
  EXPECT_NE(EnableController("memory", "/nowhere", "/nowhere/root"), "");
}

// A cgroup below this test's, with a controller that it can enable for its children, like a
// service's.
class PassOnTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs to be root";
    const ControllerFiles files = ReadControllerFiles();
    place_ = files.place;
    for (const char* name : {"memory", "hugetlb"}) {
      if (WhyControllerUnusable(name, files).empty()) controller_ = name;
    }
    if (controller_.empty()) GTEST_SKIP() << WhyControllerUnusable("memory", files);
    was_passed_on_ = Passes(place_);
    service_ = absl::StrCat(place_, "/controllers_test_", getpid());
    root_ = service_ + "/root";
    beside_ = service_ + "_beside";
    for (const std::string& path : {service_, root_, beside_}) {
      ASSERT_EQ(mkdir(path.c_str(), 0755), 0) << path;
    }
    const std::string why_not = EnableController(controller_, place_, beside_);
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    ASSERT_TRUE(WriteKernelFile(service_ + "/cgroup.procs", absl::StrCat(getpid())));
  }
  // Restores the state found, also if this is not the hierarchy's root and so must not enable
  // anything.
  void TearDown() override {
    if (root_.empty()) return;
    for (const std::string& path : {root_, service_, beside_, was_passed_on_ ? "" : place_}) {
      if (!path.empty()) WriteKernelFile(path + "/cgroup.subtree_control", "-" + controller_);
    }
    EXPECT_TRUE(WriteKernelFile(place_ + "/cgroup.procs", absl::StrCat(getpid())));
    for (const std::string& path : {service_, beside_}) EXPECT_TRUE(RemoveCgroup(path)) << path;
  }
  bool Passes(const std::string& path) const {
    const std::string text = KernelFileText(path + "/cgroup.subtree_control");
    return text.find(controller_) != std::string::npos;
  }

  std::string controller_, place_, service_, root_, beside_;
  bool was_passed_on_ = false;
};

TEST_F(PassOnTest, WhoIsAloneThereMovesAsideForIt) {
  EXPECT_EQ(EnableController(controller_, service_, root_), "");
  EXPECT_TRUE(Passes(service_));
  EXPECT_TRUE(Passes(root_));
  const std::string own = PathIn(KernelFileText("/proc/self/cgroup"), "");
  EXPECT_EQ(CgroupMount() + own, service_ + "/cadre-agent");
  EXPECT_EQ(EnableController(controller_, service_, root_), "") << "again";
}

TEST_F(PassOnTest, WhereOthersAreNobodyMoves) {
  const pid_t other = fork();
  if (other == 0) {
    pause();
    _exit(0);
  }
  EXPECT_THAT(EnableController(controller_, service_, root_),
              HasSubstr(absl::StrCat("process ", other, " is in the cgroup ", service_)));
  EXPECT_FALSE(Passes(service_));
  EXPECT_NE(access((service_ + "/cadre-agent").c_str(), F_OK), 0);
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
}

// A directory that is not a cgroup has none of the files for limits.
TEST(ContainCgroupTest, SaysWhichLimitsCannotBeSet) {
  Containment containment = {true, geteuid(), getegid(), {}};
  EXPECT_THAT(
      LimitCgroup(::testing::TempDir(), containment),
      AllOf(Not(Contains(StartsWith(kNoMemoryLimit))), Not(Contains(StartsWith(kNoProcessLimit)))));
  containment.memory_bytes = 64 << 20;
  containment.max_pids = 6;
  const std::string missing = "No such file or directory";
  EXPECT_THAT(LimitCgroup(::testing::TempDir(), containment),
              AllOf(Contains(kNoMemoryLimit + missing), Contains(kNoProcessLimit + missing)));
}

// The program's results, by a table: the test interprets its few instructions as the kernel's
// documentation describes them. That the kernel accepts it is tested by agent/supervisor's
// groups_test.

constexpr int kMaxSteps = 1000;

bool Jumps(const bpf_insn& at, uint32_t value) {
  const auto number = static_cast<uint32_t>(at.imm);
  switch (BPF_OP(at.code)) {
    case BPF_JEQ:
      return value == number;
    case BPF_JNE:
      return value != number;
    case BPF_JLT:
      return value < number;
    case BPF_JGT:
      return value > number;
  }
  ADD_FAILURE() << "a jump of another kind: " << int{at.code};
  return false;
}

// The program's result; -1 if it does not end properly.
int Run(const std::vector<bpf_insn>& program, const bpf_cgroup_dev_ctx& context) {
  uint64_t registers[MAX_BPF_REG] = {};
  size_t next = 0;
  for (int i = 0; i < kMaxSteps && next < program.size(); ++i) {
    const bpf_insn& at = program[next++];
    if (at.code == (BPF_LDX | BPF_MEM | BPF_W)) {
      uint32_t word = 0;
      memcpy(&word, reinterpret_cast<const char*>(&context) + at.off, sizeof(word));
      registers[at.dst_reg] = word;
    } else if (at.code == (BPF_ALU64 | BPF_AND | BPF_K)) {
      registers[at.dst_reg] &= static_cast<uint64_t>(int64_t{at.imm});
    } else if (at.code == (BPF_ALU64 | BPF_MOV | BPF_K)) {
      registers[at.dst_reg] = static_cast<uint64_t>(int64_t{at.imm});
    } else if (at.code == (BPF_JMP | BPF_EXIT)) {
      return static_cast<int>(registers[BPF_REG_0]);
    } else if (BPF_CLASS(at.code) == BPF_JMP32) {
      if (Jumps(at, static_cast<uint32_t>(registers[at.dst_reg]))) next += at.off;
    } else {
      ADD_FAILURE() << "an instruction of another kind: " << int{at.code};
      return -1;
    }
  }
  return -1;
}

bool Allows(const std::vector<DeviceRule>& rules, uint32_t major, uint32_t minor,
            uint32_t type = BPF_DEVCG_DEV_CHAR) {
  bpf_cgroup_dev_ctx context = {};
  context.access_type = ((BPF_DEVCG_ACC_READ | BPF_DEVCG_ACC_WRITE) << 16) | type;
  context.major = major;
  context.minor = minor;
  const int given = Run(DeviceProgram(rules), context);
  EXPECT_GE(given, 0);
  return given == 1;
}

TEST(DeviceProgram, WithoutRulesEverythingIsAllowed) {
  EXPECT_TRUE(Allows({}, 195, 0));
  EXPECT_TRUE(Allows({}, 0, 0));
}

TEST(DeviceProgram, TheFirstRuleThatFitsDecides) {
  const std::vector<DeviceRule> rules = {{195, 2, 2, true},
                                         {195, 254, 255, true},
                                         {195, 0, UINT32_MAX, false},
                                         {226, 128, 130, false}};
  const struct {
    uint32_t major, minor;
    bool allowed;
  } kCases[] = {{195, 0, false},          {195, 1, false},   {195, 2, true},   {195, 3, false},
                {195, 253, false},        {195, 254, true},  {195, 255, true}, {195, 256, false},
                {195, UINT32_MAX, false}, {194, 0, true},    {196, 0, true},   {226, 127, true},
                {226, 128, false},        {226, 130, false}, {226, 131, true}, {1, 5, true}};
  for (const auto& one : kCases) {
    EXPECT_EQ(Allows(rules, one.major, one.minor), one.allowed) << one.major << ":" << one.minor;
  }
}

TEST(DeviceProgram, OfBlockDevicesNothingIsSaid) {
  EXPECT_TRUE(Allows({{8, 0, UINT32_MAX, false}}, 8, 0, BPF_DEVCG_DEV_BLOCK));
  EXPECT_FALSE(Allows({{8, 0, UINT32_MAX, false}}, 8, 0));
}

}  // namespace
}  // namespace cadre::supervisor
