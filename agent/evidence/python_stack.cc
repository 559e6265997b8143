#include "agent/evidence/python_stack.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/supervisor/processes/kernel_files.h"
#include "agent/supervisor/processes/pidfd.h"
#include "base/clock.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace cadre::agent {
namespace {

// faulthandler itself stops at 100.
constexpr size_t kMaxFrames = 128;

// Functions of torch.distributed and its process groups; "wait" is Work.wait.
constexpr const char* kCollectives[] = {"all_reduce",
                                        "all_gather",
                                        "all_gather_into_tensor",
                                        "_all_gather_base",
                                        "all_gather_object",
                                        "reduce_scatter",
                                        "reduce_scatter_tensor",
                                        "broadcast",
                                        "broadcast_object_list",
                                        "reduce",
                                        "scatter",
                                        "scatter_object_list",
                                        "gather",
                                        "gather_object",
                                        "all_to_all",
                                        "all_to_all_single",
                                        "barrier",
                                        "monitored_barrier",
                                        "send",
                                        "recv",
                                        "batch_isend_irecv",
                                        "wait",
                                        "init_process_group",
                                        "new_group",
                                        "destroy_process_group"};
// Methods of DistributedDataParallel in which it exchanges buffers and shapes.
constexpr const char* kDataParallel[] = {"__init__", "forward", "_pre_forward", "_sync_buffers"};
// Calls that wait for a device or a handle but have no Python frame, since they are implemented in
// C.
constexpr const char* kWaitingCalls[] = {".item(", ".cpu(",     ".tolist(", "synchronize(",
                                         ".wait(", ".to(\"cpu", ".to('cpu"};

template <typename Names>
bool IsOneOf(const Names& names, absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

std::string Text(const PythonFrame& frame) {
  return absl::StrCat(FileName(frame), ":", frame.line, " in ", frame.function);
}

// The torch call in which this frame waits for other ranks; empty: it does not.
std::string WaitOf(const PythonFrame& frame) {
  if (absl::StrContains(frame.file, "/torch/distributed/") &&
      IsOneOf(kCollectives, frame.function)) {
    return frame.function;
  }
  // Cadre's own module, also when used as a PyTorch backend.
  if (absl::StrContains(frame.file, "/cadre/_") && IsOneOf(kCollectives, frame.function)) {
    return frame.function;
  }
  if (absl::EndsWith(frame.file, "torch/nn/parallel/distributed.py") &&
      IsOneOf(kDataParallel, frame.function)) {
    return absl::StrCat("DistributedDataParallel.", frame.function);
  }
  // Backward hooks exchange gradients; a stack cannot show whether the engine is still computing.
  if (frame.function == "_engine_run_backward" ||
      (frame.function == "backward" && absl::EndsWith(frame.file, "torch/autograd/__init__.py"))) {
    return "backward";
  }
  return "";
}

}  // namespace

std::vector<PythonFrame> MainThreadOf(absl::string_view text) {
  std::vector<PythonFrame> frames;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    // The main thread is the last in a dump.
    if (absl::StartsWith(line, "Thread 0x") || absl::StartsWith(line, "Current thread 0x")) {
      frames.clear();
      continue;
    }
    std::optional<PythonFrame> frame = rpc::ParsePythonFrame(line);
    if (frame.has_value() && frames.size() < kMaxFrames) frames.push_back(*std::move(frame));
  }
  return frames;
}

PythonPlace PlaceOf(const std::vector<PythonFrame>& frames, const SourceReader& source) {
  PythonPlace place;
  if (frames.empty()) return place;
  rpc::UserFrames program;
  std::for_each(frames.rbegin(), frames.rend(),
                [&](const PythonFrame& frame) { program.Add(frame); });
  const auto own = std::find_if(frames.begin(), frames.end(),
                                [&](const PythonFrame& frame) { return program.Has(frame.file); });
  std::string line;
  if (own != frames.end()) {
    place.where = Text(*own);
    line = source(own->file, own->line);
  }
  place.activity = v1::IN_OWN_CODE;
  place.what = own != frames.end() ? line : frames.front().function;
  for (auto frame = frames.begin(); frame != own; ++frame) {
    if (absl::StartsWith(frame->file, "<frozen importlib")) {
      place.activity = v1::IMPORTING;
      return place;
    }
    const std::string wait = WaitOf(*frame);
    if (!wait.empty()) {
      place.activity = v1::IN_COLLECTIVE;
      place.what = wait;
      return place;
    }
    if (absl::StrContains(frame->file, "/torch/utils/data/")) {
      place.activity = v1::IN_DATA_LOADER;
      return place;
    }
  }
  const bool waits = own == frames.begin() &&
                     std::any_of(std::begin(kWaitingCalls), std::end(kWaitingCalls),
                                 [&](const char* call) { return absl::StrContains(line, call); });
  if (waits) place.activity = v1::IN_COLLECTIVE;
  return place;
}

namespace {

constexpr size_t kMaxDumpBytes = 128 << 10;
constexpr absl::Duration kPause = absl::Microseconds(500);
// A dump is written in pieces, microseconds apart.
constexpr int kQuietPauses = 4;

constexpr char kNoHandler[] =
    "the process does not handle Cadre's stack signal: it is no Python program, or its interpreter "
    "was started without Cadre's hook";

// Whether the process can answer the signal: it has a handler and is not stopped.
absl::Status CheckCanAnswer(pid_t process) {
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

// Waits for other readers of the same worker: the processes of a worker share a file, in which two
// dumps would mix. The lock ends with the descriptor.
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

// The file's size once it has grown and stopped growing; `before` if it does not grow in time.
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

// At most kMaxDumpBytes between these offsets.
std::string ReadBetween(const ScopedFd& file, int64_t from, int64_t to) {
  std::string text(std::min<size_t>(static_cast<size_t>(to - from), kMaxDumpBytes), '\0');
  const ssize_t got = pread(file.get(), &text[0], text.size(), from);
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

ScopedFd OpenStackFile(const std::string& path) {
  return ScopedFd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
}

// The end of the file after the last such heading. Empty: there is none.
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
  // The pidfd pins the process, so that a reused pid is not signalled.
  const ScopedFd pidfd(supervisor::OpenPidfd(process));
  if (!pidfd.ok()) return absl::NotFoundError("the process has ended");
  RETURN_IF_ERROR(CheckCanAnswer(process));
  if (!file.ok()) return absl::UnimplementedError(kNoHandler);
  const absl::Status silent = absl::DeadlineExceededError("the process does not answer in time");
  // Without time left, its answer would go to the next reader.
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
    // Stacks of other processes may follow.
    if (absl::StartsWith(line, "  ")) {
      absl::StrAppend(&stack, line, "\n");
    } else if (!stack.empty()) {
      break;
    }
  }
  return stack;
}

std::string SourceLine(pid_t process, const std::string& path, int number) {
  const std::string whole =
      !path.empty() && path[0] == '/' ? path : absl::StrCat("/proc/", process, "/cwd/", path);
  // The name comes from the program and may be a pipe without a writer, so the open must not block.
  const ScopedFd file(open(whole.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info;
  if (!file.ok() || fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return "";
  std::string line;
  char chunk[16 << 10];
  int at = 1;
  for (size_t total = 0; total < kMaxSourceBytes;) {
    const ssize_t n = read(file.get(), chunk, sizeof(chunk));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    total += static_cast<size_t>(n);
    for (const char* c = chunk; c != chunk + n && at <= number; ++c) {
      if (*c == '\n') {
        ++at;
      } else if (at == number && line.size() < 4 * kMaxSourceLineBytes) {
        line.push_back(*c);
      }
    }
    if (at > number) break;
  }
  return OneLine(ReplaceInvalidUtf8(absl::StripAsciiWhitespace(line)), kMaxSourceLineBytes);
}

}  // namespace cadre::agent
