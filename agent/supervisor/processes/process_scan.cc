#include "agent/supervisor/processes/process_scan.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/supervisor/processes/kernel_files.h"
#include "agent/supervisor/processes/pidfd.h"
#include "base/scoped_fd.h"

namespace cadre::supervisor {
namespace {

// An environment may be megabytes long; the marker comes first in it, so this much is enough.
constexpr size_t kEnvironmentBytes = 64 << 10;
// PF_EXITING of linux/sched.h, in the flags of /proc/PID/stat.
constexpr unsigned kExitingFlag = 0x4;

std::vector<pid_t> AllPids() {
  std::vector<pid_t> pids;
  DIR* dir = opendir("/proc");
  if (dir == nullptr) return pids;
  while (const dirent* entry = readdir(dir)) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(entry->d_name, &pid)) pids.push_back(pid);
  }
  closedir(dir);
  return pids;
}

// `directory` is that of a process or a thread.
std::optional<ProcessInfo> InspectAt(const std::string& directory, pid_t pid) {
  const auto text = ReadKernelFile(absl::StrCat(directory, "/stat"));
  if (!text.has_value()) return std::nullopt;
  // "pid (any name, with any characters) state parent group session tty foreground flags ..."
  const size_t end = text->rfind(')');
  ProcessInfo info;
  info.pid = pid;
  unsigned flags = 0;
  if (end == std::string::npos || sscanf(text->c_str() + end + 1, " %c %d %*d %d %*d %*d %u",
                                         &info.state, &info.parent, &info.session, &flags) != 4) {
    return std::nullopt;
  }
  info.exiting = info.state == 'Z' || (flags & kExitingFlag) != 0;
  return info;
}

}  // namespace

std::optional<ProcessInfo> InspectProcess(pid_t pid) {
  return InspectAt(absl::StrCat("/proc/", pid), pid);
}

std::optional<KilledProcess> InspectKilled(pid_t pid) {
  const std::string directory = absl::StrCat("/proc/", pid);
  const auto process = InspectProcess(pid);
  if (!process.has_value()) return std::nullopt;
  for (const std::string& thread : Subdirectories(directory + "/task")) {
    const std::string at = absl::StrCat(directory, "/task/", thread);
    const auto info = InspectAt(at, pid);
    if (!info.has_value() || absl::StrContains("RZX", std::string(1, info->state))) continue;
    return KilledProcess{false, info->state, KernelFunction(at)};
  }
  return KilledProcess{true, process->state, KernelFunction(directory)};
}

std::string KernelFunction(const std::string& directory) {
  std::string name = KernelFileText(absl::StrCat(directory, "/wchan"));
  absl::StripAsciiWhitespace(&name);
  return name == "0" ? "" : name;
}

std::vector<pid_t> OwnChildren() {
  std::vector<pid_t> children;
  // The kernel may be built without this file.
  if (const auto text = ReadKernelFile("/proc/thread-self/children"); text.has_value()) {
    for (const absl::string_view child : absl::StrSplit(*text, ' ', absl::SkipWhitespace())) {
      pid_t pid = 0;
      if (absl::SimpleAtoi(child, &pid)) children.push_back(pid);
    }
    return children;
  }
  for (const pid_t pid : AllPids()) {
    const auto process = InspectProcess(pid);
    if (process.has_value() && process->parent == getpid()) children.push_back(pid);
  }
  return children;
}

std::string ReadMarker(pid_t pid) {
  ScopedFd fd(open(absl::StrCat("/proc/", pid, "/environ").c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.ok()) return "";
  std::string text(kEnvironmentBytes, '\0');
  const ssize_t n = read(fd.get(), &text[0], text.size());
  if (n <= 0) return "";
  const std::string variable = absl::StrCat(kMarkerVariable, "=");
  for (const absl::string_view entry :
       absl::StrSplit(absl::string_view(text.data(), static_cast<size_t>(n)), '\0')) {
    if (absl::StartsWith(entry, variable)) return std::string(entry.substr(variable.size()));
  }
  return "";
}

std::vector<pid_t> KillProcesses(const std::function<bool(const ProcessInfo&)>& belongs) {
  std::vector<pid_t> found;
  for (const pid_t pid : AllPids()) {
    const auto first = InspectProcess(pid);
    if (!first.has_value() || first->state == 'Z' || pid == getpid() || !belongs(*first)) continue;
    ScopedFd pidfd(OpenPidfd(pid));
    const auto pinned = InspectProcess(pid);
    if (!pidfd.ok() || !pinned.has_value() || pinned->state == 'Z' || !belongs(*pinned)) continue;
    SignalPidfd(pidfd.get(), SIGKILL);
    found.push_back(pid);
  }
  return found;
}

}  // namespace cadre::supervisor
