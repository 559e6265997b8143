#include "agent/evidence/python_dump.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
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
#include "base/status_macros.h"

namespace cadre::agent {
namespace {

constexpr size_t kMaxDumpBytes = 128 << 10;
constexpr absl::Duration kPause = absl::Microseconds(500);
// A dump is written in pieces, microseconds apart.
constexpr int kQuietPauses = 4;

constexpr char kNoHandler[] =
    "the process does not handle Cadre's stack signal: it is no Python program, or its interpreter "
    "was started without Cadre's hook";

// Whether the process can answer the signal: it has a handler and goes on.
absl::Status MayAsk(pid_t process) {
  const auto status = supervisor::ReadKernelFile(absl::StrCat("/proc/", process, "/status"));
  if (!status.has_value()) return absl::NotFoundError("the process has ended");
  bool handles = false;
  for (absl::string_view line : absl::StrSplit(*status, '\n')) {
    if (absl::ConsumePrefix(&line, "State:")) {
      const absl::string_view state = absl::StripAsciiWhitespace(line).substr(0, 1);
      if (state == "Z" || state == "X") return absl::NotFoundError("the process has ended");
      if (state == "T" || state == "t") {
        return absl::FailedPreconditionError("the process is stopped");
      }
    }
    if (!absl::ConsumePrefix(&line, "SigCgt:")) continue;
    uint64_t caught = 0;
    handles = absl::SimpleHexAtoi(absl::StripAsciiWhitespace(line), &caught) &&
              (caught >> (kStackSignal - 1) & 1) != 0;
  }
  return handles ? absl::OkStatus() : absl::UnimplementedError(kNoHandler);
}

// Who looks at the same worker at the same time waits: the processes of a worker share a file, and
// two dumps in it would mix. The lock ends with the descriptor.
bool AwaitTurn(const ScopedFd& file, MonoTime deadline) {
  while (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (MonoNow() >= deadline) return false;
    absl::SleepFor(kPause);
  }
  return true;
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

// At most kMaxDumpBytes between these places in the file.
std::string ReadBetween(const ScopedFd& file, int64_t from, int64_t to) {
  std::string text(std::min<size_t>(static_cast<size_t>(to - from), kMaxDumpBytes), '\0');
  const ssize_t got = pread(file.get(), &text[0], text.size(), from);
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

ScopedFd OpenStackFile(const std::string& path) {
  return ScopedFd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
}

// The file's end from the last heading like this on. Empty: there is none.
std::string LastBehind(const std::string& stack_file, absl::string_view heading) {
  const ScopedFd file = OpenStackFile(stack_file);
  if (!file.ok()) return "";
  const int64_t size = SizeOf(file);
  const std::string text =
      ReadBetween(file, std::max<int64_t>(0, size - int64_t{kMaxDumpBytes}), size);
  const size_t found = absl::string_view(text).rfind(heading);
  return found == text.npos ? "" : text.substr(found);
}

}  // namespace

absl::StatusOr<std::string> PythonStackOf(pid_t process, const std::string& stack_file,
                                          MonoTime deadline) {
  const ScopedFd file = OpenStackFile(stack_file);
  // It pins the process that was asked about.
  const ScopedFd pidfd(supervisor::OpenPidfd(process));
  if (!pidfd.ok()) return absl::NotFoundError("the process has ended");
  RETURN_IF_ERROR(MayAsk(process));
  if (!file.ok()) return absl::UnimplementedError(kNoHandler);
  const absl::Status silent = absl::DeadlineExceededError("the process does not answer in time");
  // Asked without time to answer, it would answer whoever asks next.
  if (!AwaitTurn(file, deadline) || MonoNow() >= deadline) return silent;
  const int64_t before = SizeOf(file);
  if (supervisor::SignalPidfd(pidfd.get(), kStackSignal) != 0) {
    return absl::NotFoundError("the process has ended");
  }
  const int64_t after = AwaitGrowth(file, before, deadline);
  if (after <= before) return silent;
  return ReadBetween(file, before, after);
}

std::string FatalStackIn(const std::string& stack_file) {
  return LastBehind(stack_file, "Fatal Python error: ");
}

std::string ExitStackIn(const std::string& stack_file, pid_t process, int status) {
  std::string stack;
  const std::string behind =
      LastBehind(stack_file, absl::StrCat("sys.exit(", status, ") in process ", process, "\n"));
  for (const absl::string_view line : absl::StrSplit(behind, '\n')) {
    // Others' stacks may follow.
    if (absl::StartsWith(line, "  ")) {
      absl::StrAppend(&stack, line, "\n");
    } else if (!stack.empty()) {
      break;
    }
  }
  return stack;
}

}  // namespace cadre::agent
