#include "agent/evidence/python_dump.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/supervisor/processes/cgroup_files.h"
#include "agent/supervisor/processes/pidfd.h"
#include "base/clock.h"
#include "base/scoped_fd.h"

namespace cadre::agent {
namespace {

constexpr size_t kMaxDumpBytes = 128 << 10;
constexpr absl::Duration kPause = absl::Microseconds(500);
// A dump is written in pieces, microseconds apart.
constexpr int kQuietPauses = 4;

// Whether the process has a handler for the signal.
bool HandlesSignal(pid_t process) {
  const auto status = supervisor::ReadKernelFile(absl::StrCat("/proc/", process, "/status"));
  if (!status.has_value()) return false;
  for (absl::string_view line : absl::StrSplit(*status, '\n')) {
    if (!absl::ConsumePrefix(&line, "SigCgt:")) continue;
    uint64_t caught = 0;
    return absl::SimpleHexAtoi(absl::StripAsciiWhitespace(line), &caught) &&
           (caught >> (kStackSignal - 1) & 1) != 0;
  }
  return false;
}

int64_t SizeOf(const ScopedFd& file) {
  struct stat info;
  return fstat(file.get(), &info) == 0 ? info.st_size : 0;
}

// Its size once it has grown and grows no more; `before` where it does not until the deadline.
int64_t AwaitGrowth(const ScopedFd& file, int64_t before, MonoTime deadline) {
  int64_t size = before;
  for (int quiet = 0; quiet < kQuietPauses && MonoNow() < deadline;) {
    absl::SleepFor(kPause);
    const int64_t now = SizeOf(file);
    quiet = now == size && now > before ? quiet + 1 : 0;
    size = now;
  }
  return size;
}

}  // namespace

std::string PythonStackOf(pid_t process, const std::string& stack_file, MonoTime deadline) {
  const ScopedFd file(open(stack_file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.ok()) return "";
  // It pins the process that was asked about.
  const ScopedFd pidfd(supervisor::OpenPidfd(process));
  if (!pidfd.ok() || !HandlesSignal(process)) return "";
  const int64_t before = SizeOf(file);
  if (supervisor::SignalPidfd(pidfd.get(), kStackSignal) != 0) return "";
  const int64_t after = AwaitGrowth(file, before, deadline);
  if (after <= before) return "";
  std::string text(std::min<size_t>(static_cast<size_t>(after - before), kMaxDumpBytes), '\0');
  const ssize_t got = pread(file.get(), &text[0], text.size(), before);
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

}  // namespace cadre::agent
