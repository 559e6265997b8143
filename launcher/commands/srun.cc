// srun: runs a program as a step of a batch job, or as a job of its own, shows its output and exits
// with its exit status.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/cluster/users.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/text.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/logs.h"
#include "launcher/commands/slurm_client.h"
#include "launcher/slurm/srun_options.h"
#include "launcher/slurm/srun_text.h"
#include "launcher/spec/job_spec.h"
#include "proto/control.pb.h"

namespace cadre::launcher {
namespace {

// Each costs two calls in every round.
constexpr uint32_t kTasksShown = 1024;
// A step that still waits after this time is said to wait.
constexpr absl::Duration kWaitNotice = absl::Seconds(1);
// Within this time after a Ctrl-C the next one cancels the step.
constexpr absl::Duration kSecondInterrupt = absl::Seconds(1);

// SLURM_EXIT_ERROR, with which scripts tell errors of srun from those of its tasks; else 1.
int ErrorStatus() {
  const char* const text = getenv("SLURM_EXIT_ERROR");
  int status = 1;
  return text != nullptr && absl::SimpleAtoi(text, &status) && status > 0 && status < 256 ? status
                                                                                          : 1;
}

int FailSrun(absl::string_view text) { return Fail(ErrorStatus(), absl::StrCat("error: ", text)); }

// --- signals ---

// Written by the handler, read by the thread that follows the step.
std::atomic<int> interrupts{0};
std::atomic<bool> terminated{false};
// How many times each signal was caught that is passed on to the tasks.
std::atomic<int> to_pass_on[NSIG];
// Before the step is submitted a signal ends srun.
std::atomic<bool> submitted{false};
int wake_pipe[2] = {-1, -1};

void OnSignal(int signal) {
  if (!submitted && signal == SIGCONT) return;
  if (!submitted) _exit(kExitSignalBase + signal);
  if (signal == SIGINT) {
    ++interrupts;
  } else if (signal == SIGTERM || signal == SIGQUIT) {
    terminated = true;
  } else {
    ++to_pass_on[signal];
  }
  const int error = errno;
  // The pipe may be full, and then it wakes its reader anyway.
  (void)!write(wake_pipe[1], "", 1);
  errno = error;
}

void HandleSignals() {
  if (pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK) != 0) return;
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGALRM, SIGUSR1, SIGUSR2, SIGCONT}) {
    struct sigaction before = {};
    if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    sigaction(signal, &action, nullptr);
  }
}

// Sleeps, but not longer than until the next signal.
void SleepUntilSignal(absl::Duration duration) {
  pollfd readable = {wake_pipe[0], POLLIN, 0};
  poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(duration)));
  char bytes[64];
  while (read(wake_pipe[0], bytes, sizeof(bytes)) > 0) {
  }
}

// --- the step ---

class StepFollower {
 public:
  StepFollower(ControlClient& client, const SrunRequest& request, const v1::JobStatus& job)
      : client_(client), request_(request), job_(job), name_(LastingName(job)) {}

  int Run() {
    LogFollow what;
    what.job = name_;
    what.follow = true;
    what.shows_output = request_.shows_output;
    what.shows_errors = request_.shows_errors;
    what.most_ranks = what.shows_output || what.shows_errors ? kTasksShown : 0;
    if (request_.only_task.has_value()) what.rank = request_.only_task;
    what.exact = !request_.label;
    what.unbuffered = request_.unbuffered;
    if (request_.label) {
      what.prefix = [this](uint32_t task) { return TaskLabel(task, job_.world_size()); };
    }
    what.on_status = [this](const v1::JobStatus& job) { OnStatus(job); };
    what.on_end = [this](const v1::JobStatus& job) { return OnEnd(job); };
    what.wait = [this](absl::Duration duration) {
      SleepUntilSignal(duration);
      TakeSignals();
    };
    const int status = FollowLogs(LogsOf(client_), what);
    // Nobody reads the output any more, as in `srun ... | head`.
    if (!job_.has_verdict()) Cancel("srun could not show its output");
    return status;
  }

 private:
  void OnStatus(const v1::JobStatus& job) {
    // Verdicts come without the size of the world that ended.
    const uint32_t tasks = std::max(job.world_size(), job_.world_size());
    job_ = job;
    job_.set_world_size(tasks);
    if (request_.quiet || job.has_verdict()) return;
    const bool waits = job.phase() == v1::QUEUED;
    if (waits && !said_waiting_ && MonoNow() > began_ + kWaitNotice) {
      said_waiting_ = true;
      Notice(job.step_of() == 0
                 ? absl::StrCat("job ", job.submission(), " queued and waiting for resources")
                 : RunningText(job));
    }
    if (!waits && said_waiting_ && !said_nodes_) {
      said_nodes_ = true;
      Notice(job.step_of() == 0
                 ? absl::StrCat("job ", job.submission(), " has been allocated resources")
                 : absl::StrCat("Step created for StepId=", StepIdOf(job)));
    }
  }

  int OnEnd(const v1::JobStatus& job) {
    job_ = job;
    for (const std::string& line : FailureLines(job)) Notice(absl::StrCat("error: ", line));
    return job.verdict().exit_status();
  }

  void TakeSignals() {
    if (terminated.exchange(false)) Cancel("srun was ended by a signal");
    for (int signal = 1; signal < NSIG; ++signal) {
      // As for a process, several at the same time are one.
      if (to_pass_on[signal].exchange(0) != 0) PassOn(signal);
    }
    while (seen_interrupts_ < interrupts) {
      ++seen_interrupts_;
      TakeInterrupt();
    }
  }

  void TakeInterrupt() {
    const MonoTime now = MonoNow();
    if (cancelled_) {
      // The user does not want to wait for the tasks to end.
      _exit(Fail(kExitSignalBase + SIGINT,
                 absl::StrCat("StepId=", StepIdOf(job_), " is being cancelled")));
    }
    if (request_.quits_on_interrupt || now < interrupted_ + kSecondInterrupt) {
      return Cancel("srun was interrupted");
    }
    interrupted_ = now;
    Notice("interrupt (one more within 1 sec to abort)");
    Notice(RunningText(job_));
  }

  void PassOn(int signal) {
    if (job_.has_verdict()) return;
    if (request_.verbose) Notice(absl::StrCat("sending ", SignalText(signal), " to the tasks"));
    const absl::Status sent = client_.Signal(name_, signal, v1::SignalJobRequest::STEPS).status();
    // Its tasks may have ended, or not have begun.
    if (sent.ok() || absl::IsFailedPrecondition(sent)) return;
    Notice(absl::StrCat("error: cannot send the tasks ", SignalText(signal), ": ", sent.message()));
  }

  void Cancel(const std::string& reason) {
    if (cancelled_) return;
    cancelled_ = true;
    if (!request_.quiet) Notice(absl::StrCat("cancelling StepId=", StepIdOf(job_)));
    const absl::StatusOr<v1::JobStatus> job = client_.Cancel(name_, reason);
    // It may have ended meanwhile.
    if (!job.ok() && !absl::IsFailedPrecondition(job.status())) {
      cancelled_ = false;
      Notice(absl::StrCat("error: cannot cancel the step: ", job.status().message()));
    }
  }

  ControlClient& client_;
  const SrunRequest& request_;
  // As the server reported it last.
  v1::JobStatus job_;
  const std::string name_;
  const MonoTime began_ = MonoNow();
  bool said_waiting_ = false;
  bool said_nodes_ = false;
  int seen_interrupts_ = 0;
  MonoTime interrupted_ = began_ + -kSecondInterrupt;
  bool cancelled_ = false;
};

absl::StatusOr<std::string> Directory() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::current_path(error);
  if (!error) return path.string();
  return absl::InvalidArgumentError(
      absl::StrCat("error: cannot find the current directory: ", error.message()));
}

// Whether standard input is a pipe or a file, from which a program under Slurm would read.
bool HasInput() {
  struct stat input;
  return fstat(STDIN_FILENO, &input) == 0 && (S_ISFIFO(input.st_mode) || S_ISREG(input.st_mode));
}

int RunStep(const SrunRequest& request) {
  if (HasInput() && !request.quiet) {
    Notice("warning: standard input is not passed on to the tasks");
  }
  const absl::Status text = CheckUtf8Fields(request.spec);
  if (!text.ok()) return FailSrun(text.message());
  const absl::StatusOr<agent::UserEntry> user = agent::ThisUser();
  if (!user.ok()) return FailSrun(user.status().message());
  HandleSignals();
  const auto client = ConnectToServer();
  if (!client.ok()) return FailSrun(client.status().message());
  submitted = true;
  const absl::StatusOr<v1::JobStatus> job =
      (*client)->Submit(request.spec, user->name, request.within);
  if (!job.ok()) {
    return FailSrun(
        absl::StrCat(request.within.empty()
                         ? "Unable to allocate resources: "
                         : absl::StrCat("Unable to create step for job ", request.within, ": "),
                     job.status().message()));
  }
  if (request.verbose) {
    Notice(absl::StrCat("StepId=", StepIdOf(*job), " is job ", job->submission(), ": ",
                        Count(request.spec.nodes().max(), "node"), ", ",
                        Count(request.spec.workers_per_node().count(), "task"), " on each"));
  }
  return StepFollower(**client, request, *job).Run();
}

int Run(const Parsed& parsed) {
  const absl::StatusOr<std::string> directory = Directory();
  if (!directory.ok()) return Fail(ErrorStatus(), directory.status().message());
  const absl::StatusOr<SrunRequest> request = ReadSrun(parsed.rest, ReadEnvironment(), *directory);
  if (!request.ok()) {
    const absl::string_view message = request.status().message();
    const bool of_values =
        absl::StartsWith(message, "error: ") || absl::StartsWith(message, "fatal: ");
    if (of_values) return Fail(ErrorStatus(), message);
    FailUsage("srun", request.status());
    return ErrorStatus();
  }
  switch (request->answer) {
    case SrunRequest::Answer::kHelp:
      return Print(SrunHelp());
    case SrunRequest::Answer::kUsage:
      return Print(SrunUsage());
    case SrunRequest::Answer::kVersion:
      return PrintSlurmVersion();
    case SrunRequest::Answer::kNone:
      break;
  }
  if (!request->quiet) {
    for (const std::string& notice : request->notices) Notice(notice);
  }
  return RunStep(*request);
}

}  // namespace

Command SrunCommand() {
  Command command;
  command.name = "srun";
  command.summary = "Run a program as a step of a batch job, or as a job.";
  command.own_syntax = true;
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
