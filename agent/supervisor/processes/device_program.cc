#include "agent/supervisor/processes/device_program.h"

#include <cstddef>
#include <cstdint>

namespace cadre::supervisor {
namespace {

// The context comes in the first one.
constexpr uint8_t kContext = BPF_REG_1;
constexpr uint8_t kType = BPF_REG_2;
constexpr uint8_t kMajor = BPF_REG_3;
constexpr uint8_t kMinor = BPF_REG_4;
// In access_type the kind of device is below, how it is accessed above.
constexpr int32_t kTypeMask = 0xffff;

bpf_insn Load(uint8_t to, size_t offset) {
  return {BPF_LDX | BPF_MEM | BPF_W, to, kContext, static_cast<int16_t>(offset), 0};
}

// A comparison is of 64 bits with a number that the kernel extends by its sign: of 32 bits it is
// what the rules mean.
bpf_insn SkipIf(uint8_t what, int16_t skipped, uint8_t in, uint32_t number) {
  return {static_cast<uint8_t>(BPF_JMP32 | what | BPF_K), in, 0, skipped,
          static_cast<int32_t>(number)};
}

void End(bool allowed, std::vector<bpf_insn>& program) {
  program.push_back({BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, allowed ? 1 : 0});
  program.push_back({BPF_JMP | BPF_EXIT, 0, 0, 0, 0});
}

}  // namespace

std::vector<bpf_insn> DeviceProgram(const std::vector<DeviceRule>& rules) {
  std::vector<bpf_insn> program = {
      Load(kType, offsetof(bpf_cgroup_dev_ctx, access_type)),
      {BPF_ALU64 | BPF_AND | BPF_K, kType, 0, 0, kTypeMask},
      Load(kMajor, offsetof(bpf_cgroup_dev_ctx, major)),
      Load(kMinor, offsetof(bpf_cgroup_dev_ctx, minor)),
      SkipIf(BPF_JEQ, 2, kType, BPF_DEVCG_DEV_CHAR),
  };
  End(true, program);
  for (const DeviceRule& rule : rules) {
    // Each skips what is left of the rule, of which the end are two instructions.
    program.push_back(SkipIf(BPF_JNE, 4, kMajor, rule.major));
    program.push_back(SkipIf(BPF_JLT, 3, kMinor, rule.first_minor));
    program.push_back(SkipIf(BPF_JGT, 2, kMinor, rule.last_minor));
    End(rule.allowed, program);
  }
  End(true, program);
  return program;
}

}  // namespace cadre::supervisor
