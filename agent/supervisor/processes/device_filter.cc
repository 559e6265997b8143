#include "agent/supervisor/processes/device_filter.h"

#include <errno.h>
#include <linux/bpf.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "agent/supervisor/processes/device_program.h"
#include "base/status_macros.h"

namespace cadre::supervisor {
namespace {

// Of no consequence: it matters to programs that call the kernel's functions.
constexpr char kLicense[] = "Apache-2.0";

int Bpf(bpf_cmd command, bpf_attr& attributes) {
  return static_cast<int>(syscall(SYS_bpf, command, &attributes, sizeof(attributes)));
}

}  // namespace

absl::StatusOr<ScopedFd> LoadDeviceProgram(const std::vector<DeviceRule>& rules) {
  const std::vector<bpf_insn> program = DeviceProgram(rules);
  bpf_attr attributes = {};
  attributes.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
  attributes.insn_cnt = static_cast<uint32_t>(program.size());
  attributes.insns = reinterpret_cast<uintptr_t>(program.data());
  attributes.license = reinterpret_cast<uintptr_t>(kLicense);
  ScopedFd loaded(Bpf(BPF_PROG_LOAD, attributes));
  if (!loaded.ok()) return absl::ErrnoToStatus(errno, "the kernel takes no program for devices");
  return loaded;
}

absl::Status FilterDevices(int cgroup_fd, const std::vector<DeviceRule>& rules) {
  ASSIGN_OR_RETURN(const ScopedFd program, LoadDeviceProgram(rules));
  bpf_attr attributes = {};
  attributes.target_fd = static_cast<uint32_t>(cgroup_fd);
  attributes.attach_bpf_fd = static_cast<uint32_t>(program.get());
  attributes.attach_type = BPF_CGROUP_DEVICE;
  // Beside those of whoever else manages cgroups, as systemd does.
  attributes.attach_flags = BPF_F_ALLOW_MULTI;
  if (Bpf(BPF_PROG_ATTACH, attributes) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "the kernel attaches no program for devices");
}

}  // namespace cadre::supervisor
