// The program's meaning, by a table: it is run here by what the kernel's documentation says of the
// few instructions that it has. That the kernel takes it: agent/supervisor's contain_test.
#include "agent/supervisor/processes/device_program.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

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

// What the program gives; -1: it does not end well.
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
