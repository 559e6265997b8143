#include "agent/supervisor/processes/cgroup_limits.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/supervisor/processes/cgroups.h"
#include "agent/supervisor/processes/kernel_files.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"

namespace cadre::supervisor {
namespace {

// The cgroup for the agent and its supervisor. The name differs from those of supervisors' trees.
constexpr char kAgentCgroup[] = "/cadre-agent";

bool IsIn(absl::string_view controller, absl::string_view list) {
  const std::vector<absl::string_view> names =
      absl::StrSplit(list, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  return std::find(names.begin(), names.end(), controller) != names.end();
}

// Returns an empty string if both processes have moved.
std::string MoveToAgentCgroup(const std::string& parent) {
  std::vector<pid_t> pids;
  const std::string processes = KernelFileText(parent + "/cgroup.procs");
  for (const absl::string_view line : absl::StrSplit(processes, '\n', absl::SkipEmpty())) {
    pid_t pid = 0;
    // A process of another pid namespace is shown as 0.
    if (!absl::SimpleAtoi(line, &pid) || (pid != getpid() && pid != getppid())) {
      return absl::StrCat("process ", line, " is in the cgroup ", parent,
                          " too; start the agent as a service, which has a cgroup of its own");
    }
    pids.push_back(pid);
  }
  const std::string home = parent + kAgentCgroup;
  if (mkdir(home.c_str(), 0755) != 0 && errno != EEXIST) {
    return absl::StrCat("cannot make ", home, ": ", strerror(errno));
  }
  for (const pid_t pid : pids) {
    if (WriteKernelFile(home + "/cgroup.procs", absl::StrCat(pid))) continue;
    return absl::StrCat("cannot move process ", pid, " to ", home, ": ", strerror(errno));
  }
  return "";
}

}  // namespace

std::string EnableForChildren(absl::string_view controller, const std::string& cgroup) {
  const std::string file = cgroup + "/cgroup.subtree_control";
  if (IsIn(controller, KernelFileText(file))) return "";
  if (WriteKernelFile(file, absl::StrCat("+", controller))) return "";
  return absl::StrCat("cannot enable the ", controller, " controller below ", cgroup, ": ",
                      strerror(errno));
}

ControllerFiles ReadControllerFiles() {
  ControllerFiles files;
  const std::string mount = CgroupMount();
  files.kernel = KernelFileText("/proc/cgroups");
  files.everywhere = KernelFileText(mount + "/cgroup.controllers");
  files.place = mount + PathIn(KernelFileText("/proc/self/cgroup"), "");
  files.here = KernelFileText(files.place + "/cgroup.controllers");
  return files;
}

std::string WhyControllerUnusable(absl::string_view controller, const ControllerFiles& files) {
  if (IsIn(controller, files.here)) return "";
  if (IsIn(controller, files.everywhere)) {
    return absl::StrCat(files.place, " is not given cgroup v2's ", controller,
                        " controller; start the agent as a service with Delegate=yes");
  }
  for (const absl::string_view line : absl::StrSplit(files.kernel, '\n')) {
    // The fields: name, hierarchy, number of cgroups, enabled.
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() != 4 || words[0] != controller) continue;
    if (words[3] == "0") {
      return absl::StrCat("the kernel's ", controller,
                          " controller is switched off; cgroup_enable=", controller,
                          " on its command line switches it on");
    }
    if (words[1] != "0") {
      return absl::StrCat("the ", controller, " controller is used by cgroup v1 here; ",
                          "systemd.unified_cgroup_hierarchy=1 on the kernel's command line gives "
                          "it to cgroup v2");
    }
  }
  return absl::StrCat("cgroup v2 has no ", controller, " controller here");
}

std::string EnableController(absl::string_view controller, const std::string& parent,
                             const std::string& root) {
  if (!IsIn(controller, KernelFileText(root + "/cgroup.controllers"))) {
    ControllerFiles files = ReadControllerFiles();
    files.place = parent;
    files.here = KernelFileText(parent + "/cgroup.controllers");
    const std::string without = WhyControllerUnusable(controller, files);
    if (!without.empty()) return without;
    std::string refused = EnableForChildren(controller, parent);
    // The error is EBUSY if processes are in the cgroup.
    if (!refused.empty() && !KernelFileText(parent + "/cgroup.procs").empty()) {
      const std::string stays = MoveToAgentCgroup(parent);
      if (!stays.empty()) return stays;
      refused = EnableForChildren(controller, parent);
    }
    if (!refused.empty()) return refused;
  }
  return EnableForChildren(controller, root);
}

namespace {

// The register in which the context is passed.
constexpr uint8_t kContext = BPF_REG_1;
constexpr uint8_t kType = BPF_REG_2;
constexpr uint8_t kMajor = BPF_REG_3;
constexpr uint8_t kMinor = BPF_REG_4;
// The low bits of access_type hold the device type, the high bits the access.
constexpr int32_t kTypeMask = 0xffff;

bpf_insn Load(uint8_t to, size_t offset) {
  return {BPF_LDX | BPF_MEM | BPF_W, to, kContext, static_cast<int16_t>(offset), 0};
}

// The rules need 32-bit comparisons: a 64-bit one would sign-extend the constant.
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
    // Each jump skips the rest of the rule, which ends with two instructions.
    program.push_back(SkipIf(BPF_JNE, 4, kMajor, rule.major));
    program.push_back(SkipIf(BPF_JLT, 3, kMinor, rule.first_minor));
    program.push_back(SkipIf(BPF_JGT, 2, kMinor, rule.last_minor));
    End(rule.allowed, program);
  }
  End(true, program);
  return program;
}

namespace {

// The license does not matter here, only for programs that call the kernel's GPL functions.
constexpr char kLicense[] = "Apache-2.0";

int Bpf(bpf_cmd command, bpf_attr& attributes) {
  return static_cast<int>(syscall(SYS_bpf, command, &attributes, sizeof(attributes)));
}

// PERMISSION_DENIED: this process may not load it. Other errors: the kernel does not support it.
absl::StatusOr<ScopedFd> LoadDeviceProgram(const std::vector<DeviceRule>& rules) {
  const std::vector<bpf_insn> program = DeviceProgram(rules);
  bpf_attr attributes = {};
  attributes.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
  attributes.insn_cnt = static_cast<uint32_t>(program.size());
  attributes.insns = reinterpret_cast<uintptr_t>(program.data());
  attributes.license = reinterpret_cast<uintptr_t>(kLicense);
  ScopedFd loaded(Bpf(BPF_PROG_LOAD, attributes));
  if (!loaded.ok())
    return absl::ErrnoToStatus(errno, "the kernel refuses the BPF program that restricts devices");
  return loaded;
}

// Applies to all current and future processes in the cgroup and below it, as long as the cgroup
// exists. What cgroups above it refuse stays refused.
absl::Status FilterDevices(int cgroup_fd, const std::vector<DeviceRule>& rules) {
  ASSIGN_OR_RETURN(const ScopedFd program, LoadDeviceProgram(rules));
  bpf_attr attributes = {};
  attributes.target_fd = static_cast<uint32_t>(cgroup_fd);
  attributes.attach_bpf_fd = static_cast<uint32_t>(program.get());
  attributes.attach_type = BPF_CGROUP_DEVICE;
  // Allows programs of other cgroup managers, such as systemd, beside ours.
  attributes.attach_flags = BPF_F_ALLOW_MULTI;
  if (Bpf(BPF_PROG_ATTACH, attributes) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno,
                             "the kernel refuses to attach the BPF program that restricts devices");
}

}  // namespace

namespace {

// The files that are delegated according to the kernel's documentation (cgroup-v2, "Model of
// Delegation"): the user can make cgroups below and move processes there, but cannot move processes
// out or change the group's own limits.
constexpr const char* kDelegated[] = {"", "/cgroup.procs", "/cgroup.threads",
                                      "/cgroup.subtree_control"};

// Limits on the cgroups that the user may make below: more than any launcher or container engine
// needs, and few enough to be removed quickly.
constexpr char kMaxDepth[] = "32";
constexpr char kMaxCgroups[] = "4096";

void Limit(const std::string& path, const Containment& containment,
           std::vector<std::string>* undone) {
  WriteKernelFile(path + "/cgroup.max.depth", kMaxDepth);
  WriteKernelFile(path + "/cgroup.max.descendants", kMaxCgroups);
  if (containment.max_pids != 0 &&
      !WriteKernelFile(path + "/pids.max", absl::StrCat(containment.max_pids))) {
    undone->push_back(absl::StrCat(kNoProcessLimit, strerror(errno)));
  }
  if (containment.memory_bytes == 0) return;
  if (!WriteKernelFile(path + "/memory.max", absl::StrCat(containment.memory_bytes))) {
    undone->push_back(absl::StrCat(kNoMemoryLimit, strerror(errno)));
  }
  // A kernel without swap may not have this file.
  if (!WriteKernelFile(path + "/memory.swap.max", "0") && errno != ENOENT) {
    undone->push_back(absl::StrCat("jobs may swap: ", strerror(errno)));
  }
}

}  // namespace

std::vector<std::string> LimitCgroup(const std::string& path, const Containment& containment) {
  std::vector<std::string> undone;
  const ScopedFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  Limit(path, containment, &undone);
  const absl::Status devices = FilterDevices(directory.get(), containment.devices);
  if (!devices.ok()) {
    undone.push_back(absl::StrCat("jobs can open all GPUs: ", devices.message()));
  }
  for (const char* file : kDelegated) {
    if (chown((path + file).c_str(), containment.uid, containment.gid) == 0) continue;
    undone.push_back(absl::StrCat("jobs cannot make cgroups of their own: cannot give their user ",
                                  path, file, ": ", strerror(errno)));
    break;
  }
  return undone;
}

namespace {

std::string Devices() {
  const absl::StatusOr<ScopedFd> program = LoadDeviceProgram({});
  // Without root it cannot be tried; Linux has it since 4.15 if it has cgroups and BPF.
  if (program.ok() || (geteuid() != 0 && absl::IsPermissionDenied(program.status()))) return "";
  return std::string(program.status().message());
}

}  // namespace

UnsupportedLimits FindUnsupportedLimits() {
  const std::string none = "no cgroup v2 is mounted";
  if (CgroupMount().empty()) return {none, none, none};
  const ControllerFiles files = ReadControllerFiles();
  return {Devices(), WhyControllerUnusable("memory", files), WhyControllerUnusable("pids", files)};
}

}  // namespace cadre::supervisor
