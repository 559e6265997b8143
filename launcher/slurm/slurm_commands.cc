#include "launcher/slurm/slurm_commands.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"

extern char** environ;

namespace cadre::launcher {
namespace {

// Slurm's commands give up by themselves after some ten seconds.
constexpr absl::Duration kTimeout = absl::Minutes(1);

std::pair<std::string, std::string> NumberAndCluster(const SlurmJobId& id) {
  return absl::StrSplit(id, absl::MaxSplits(';', 1));
}

std::pair<std::string, std::string> JobAndTask(const std::string& number) {
  return absl::StrSplit(number, absl::MaxSplits('_', 1));
}

// The sbatch command, without the variables that it must not pass on.
std::vector<std::string> SbatchCommand() {
  std::vector<std::string> argv = {"env"};
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string name = std::string(*entry, std::find(*entry, *entry + strlen(*entry), '='));
    if (IsLauncherVariable(name)) argv.insert(argv.end(), {"-u", name});
  }
  argv.push_back("sbatch");
  return argv;
}

}  // namespace

bool IsLauncherVariable(absl::string_view variable) {
  // Variables with which a user or the site configures Slurm itself.
  static constexpr absl::string_view kSiteVariables[] = {
      "SLURM_CLUSTERS", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_TIME_FORMAT"};
  if (std::find(std::begin(kSiteVariables), std::end(kSiteVariables), variable) !=
      std::end(kSiteVariables)) {
    return false;
  }
  for (const char* const prefix : {"SLURM_", "SLURMD_", "SRUN_", "OMPI_", "PMIX_", "PMI_"}) {
    if (absl::StartsWith(variable, prefix)) return true;
  }
  return false;
}

absl::Status CheckSlurmJobId(const SlurmJobId& id) {
  const auto [number, cluster] = NumberAndCluster(id);
  const auto [job, task] = JobAndTask(number);
  uint32_t value = 0;
  const bool numbers =
      absl::SimpleAtoi(job, &value) && (number == job || absl::SimpleAtoi(task, &value));
  if (numbers && !absl::StartsWith(cluster, "-")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected the number of a Slurm job, got '", id.substr(0, 64), "'"));
}

absl::StatusOr<SlurmJobId> Sbatch(const std::string& script) {
  std::vector<std::string> argv = SbatchCommand();
  argv.insert(argv.end(), {"--parsable", script});
  const absl::StatusOr<ProgramOutput> output = RunProgram(argv, kTimeout);
  // As env reports it.
  if (absl::IsNotFound(output.status()) || (output.ok() && output->status == 127)) {
    return absl::UnavailableError(
        "there is no sbatch on PATH: --slurm needs Slurm's commands on this machine");
  }
  if (!output.ok()) return absl::UnavailableError(output.status().message());
  SlurmJobId id(absl::StripAsciiWhitespace(output->standard_output));
  if (output->status == 0 && CheckSlurmJobId(id).ok()) return id;
  return absl::UnavailableError(absl::StrCat("sbatch refused the job: ", ErrorLine(*output)));
}

absl::StatusOr<SlurmJob> ShowJob(const SlurmJobId& id) {
  const auto [number, cluster] = NumberAndCluster(id);
  std::vector<std::string> argv = {"env", "SLURM_TIME_FORMAT=%s", "scontrol"};
  if (!cluster.empty()) argv.insert(argv.end(), {"-M", cluster});
  argv.insert(argv.end(), {"show", "job", number});
  const absl::StatusOr<ProgramOutput> output = RunProgram(argv, kTimeout);
  if (!output.ok()) return absl::UnavailableError(output.status().message());
  if (output->status == 0) return ParseSlurmJob(output->standard_output);
  const std::string error = absl::StrCat("scontrol show job ", number, ": ", ErrorLine(*output));
  if (absl::StrContains(error, "Invalid job id")) return absl::NotFoundError(error);
  return absl::UnavailableError(error);
}

std::string ScancelLine(const SlurmJobId& id) {
  const auto [number, cluster] = NumberAndCluster(id);
  return absl::StrCat("scancel ", cluster.empty() ? "" : absl::StrCat("-M ", cluster, " "), number);
}

std::string FollowLine(const SlurmJobId& id) {
  const bool plain = id.find(';') == id.npos;
  return absl::StrCat("cadre slurm follow ", plain ? id : absl::StrCat("'", id, "'"));
}

namespace {

// The value in a line "   Key=Value Other=Value"; a path up to the end of its line may contain
// spaces.
absl::string_view ValueOf(absl::string_view text, absl::string_view key, bool to_end_of_line) {
  for (size_t at = text.find(key); at != text.npos; at = text.find(key, at + 1)) {
    const absl::string_view after = text.substr(at + key.size());
    if ((at > 0 && !absl::ascii_isspace(text[at - 1])) || !absl::StartsWith(after, "=")) continue;
    const absl::string_view value = after.substr(1, after.find_first_of("\n") - 1);
    return to_end_of_line ? absl::StripTrailingAsciiWhitespace(value)
                          : value.substr(0, value.find(' '));
  }
  return "";
}

// Slurm writes these words for an empty value.
std::string ValueOrEmpty(absl::string_view value) {
  return value == "(null)" || value == "None" ? "" : std::string(value);
}

}  // namespace

absl::StatusOr<SlurmJob> ParseSlurmJob(absl::string_view text) {
  SlurmJob job;
  const absl::string_view task = ValueOf(text, "ArrayTaskId", false);
  job.number = absl::StrCat(ValueOf(text, "JobId", false), task.empty() ? "" : "_", task);
  job.array = !std::all_of(task.begin(), task.end(), absl::ascii_isdigit) ||
              absl::StrContains(text, "\nJobId=");
  job.name = std::string(ValueOf(text, "JobName", false));
  job.state = std::string(ValueOf(text, "JobState", false));
  job.reason = ValueOrEmpty(ValueOf(text, "Reason", false));
  job.nodes = ValueOrEmpty(ValueOf(text, "NodeList", false));
  job.script = ValueOrEmpty(ValueOf(text, "Command", true));
  job.standard_output = ValueOrEmpty(ValueOf(text, "StdOut", true));
  job.standard_error = ValueOrEmpty(ValueOf(text, "StdErr", true));
  const std::pair<absl::string_view, absl::string_view> exit =
      absl::StrSplit(ValueOf(text, "ExitCode", false), absl::MaxSplits(':', 1));
  if (job.state.empty() || !absl::SimpleAtoi(exit.first, &job.exit_code) ||
      !absl::SimpleAtoi(exit.second, &job.exit_signal)) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected the output of 'scontrol show job', got '", text.substr(0, 64), "'"));
  }
  int64_t started = 0;
  if (absl::SimpleAtoi(ValueOf(text, "StartTime", false), &started)) {
    job.started = absl::FromUnixSeconds(started);
  }
  return job;
}

bool HasEnded(const SlurmJob& job) {
  static constexpr absl::string_view kEnds[] = {
      "BOOT_FAIL", "CANCELLED",     "COMPLETED", "DEADLINE", "FAILED",
      "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",  "TIMEOUT"};
  return std::find(std::begin(kEnds), std::end(kEnds), job.state) != std::end(kEnds);
}

int ExitStatusOf(const SlurmJob& job) {
  if (job.state == "COMPLETED") return 0;
  if (job.exit_code != 0) return job.exit_code;
  if (job.state == "TIMEOUT" || job.state == "DEADLINE") return kExitTimedOut;
  if (job.state == "CANCELLED") return kExitSignalBase + SIGTERM;
  if (job.exit_signal != 0) return kExitSignalBase + job.exit_signal;
  return job.state == "FAILED" || job.state == "OUT_OF_MEMORY" ? 1 : kExitTryLater;
}

std::string StateText(const SlurmJob& job) {
  const std::string because = job.reason.empty() ? "" : absl::StrCat(": ", job.reason);
  if (job.state == "PENDING") return absl::StrCat("is pending", because);
  if (job.state == "RUNNING") return absl::StrCat("runs on ", job.nodes);
  if (HasEnded(job)) return absl::StrCat("ended: ", job.state);
  return absl::StrCat("is ", absl::AsciiStrToLower(job.state), because);
}

namespace {

// slurmctld may be busy; srun itself waits longer.
constexpr absl::Duration kAddressTimeout = absl::Seconds(20);

std::string WithoutBrackets(absl::string_view address) {
  if (absl::ConsumePrefix(&address, "[")) absl::ConsumeSuffix(&address, "]");
  return std::string(address);
}

}  // namespace

std::string AddressInAliases(absl::string_view aliases, absl::string_view node) {
  for (absl::string_view alias : absl::StrSplit(aliases, ',')) {
    if (!absl::ConsumePrefix(&alias, node) || !absl::ConsumePrefix(&alias, ":")) continue;
    const size_t end = alias.empty() || alias[0] != '[' ? alias.find(':') : alias.find(']') + 1;
    return WithoutBrackets(alias.substr(0, end));
  }
  return "";
}

std::string AddressInShownNode(absl::string_view text, absl::string_view node) {
  for (absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&word, "NodeAddr=") && word != node) return WithoutBrackets(word);
  }
  return "";
}

std::string SlurmNodeAddress(absl::string_view aliases, const std::string& node) {
  std::string address = AddressInAliases(aliases, node);
  if (!address.empty()) return address;
  const absl::StatusOr<ProgramOutput> shown =
      RunProgram({"scontrol", "show", "node", node}, kAddressTimeout);
  return shown.ok() && shown->status == 0 ? AddressInShownNode(shown->standard_output, node) : "";
}

namespace {

constexpr size_t kMaxOutputBytes = 1 << 20;
constexpr size_t kMaxErrorLine = 1024;

// Pipes for the program's two output streams; this process has the reading ends.
struct Pipes {
  int out[2] = {-1, -1};
  int err[2] = {-1, -1};
  ~Pipes() {
    for (const int fd : {out[0], out[1], err[0], err[1]}) {
      if (fd >= 0) close(fd);
    }
  }
  void CloseWritingEnds() {
    close(out[1]);
    close(err[1]);
    out[1] = err[1] = -1;
  }
};

absl::StatusOr<pid_t> Start(const std::vector<std::string>& argv, const Pipes& pipes) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, pipes.out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, pipes.err[1], STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // Ctrl-C is handled by this process, which has blocked it.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  std::vector<char*> pointers;
  for (const std::string& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, pointers[0], &files, &attributes, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return absl::ErrnoToStatus(error, absl::StrCat("cannot run ", argv[0]));
  return pid;
}

// Returns false when the stream has ended.
bool ReadSome(int fd, std::string* to) {
  char bytes[16 << 10];
  const ssize_t got = read(fd, bytes, sizeof(bytes));
  if (got < 0) return errno == EINTR;
  const size_t room = kMaxOutputBytes - std::min(to->size(), kMaxOutputBytes);
  to->append(bytes, std::min<size_t>(got, room));
  return got > 0;
}

// Reads until both streams have ended; false if that takes too long.
bool ReadAll(const Pipes& pipes, MonoTime deadline, ProgramOutput* output) {
  pollfd fds[2] = {{pipes.out[0], POLLIN, 0}, {pipes.err[0], POLLIN, 0}};
  std::string* const texts[2] = {&output->standard_output, &output->standard_error};
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    const absl::Duration left = deadline - MonoNow();
    if (left <= absl::ZeroDuration()) return false;
    poll(fds, 2, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    for (int i = 0; i < 2; ++i) {
      if (fds[i].fd >= 0 && fds[i].revents != 0 && !ReadSome(fds[i].fd, texts[i])) fds[i].fd = -1;
      fds[i].revents = 0;
    }
  }
  return true;
}

// Waits for the process until the deadline, and returns whether it has ended.
bool EndsUntil(pid_t pid, MonoTime deadline) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  pollfd ended = {fd, POLLIN, 0};
  const absl::Duration left = std::max(deadline - MonoNow(), absl::ZeroDuration());
  const int ready = poll(&ended, 1, static_cast<int>(absl::ToInt64Milliseconds(left)));
  if (fd >= 0) close(fd);
  return ready == 1;
}

}  // namespace

absl::StatusOr<ProgramOutput> RunProgram(const std::vector<std::string>& argv,
                                         absl::Duration timeout) {
  Pipes pipes;
  if (pipe2(pipes.out, O_CLOEXEC) != 0 || pipe2(pipes.err, O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "pipe");
  }
  ASSIGN_OR_RETURN(const pid_t pid, Start(argv, pipes));
  pipes.CloseWritingEnds();
  ProgramOutput output;
  const MonoTime deadline = MonoNow() + timeout;
  const bool in_time = ReadAll(pipes, deadline, &output) && EndsUntil(pid, deadline);
  if (!in_time) kill(-pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!in_time) {
    return absl::DeadlineExceededError(
        absl::StrCat(argv[0], " did not end within ", absl::FormatDuration(timeout)));
  }
  output.status = ExitStatusOfWait(status);
  return output;
}

std::string ErrorLine(const ProgramOutput& output) {
  const std::vector<std::string> lines =
      absl::StrSplit(output.standard_error, '\n', absl::SkipWhitespace());
  if (lines.empty()) return absl::StrCat("exit status ", output.status);
  return absl::StrJoin(lines, "; ").substr(0, kMaxErrorLine);
}

}  // namespace cadre::launcher
