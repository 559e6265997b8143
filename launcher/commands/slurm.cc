// cadre slurm: the sbatch script for a job spec, the progress of a Slurm job, and the links under
// which this program is Slurm's commands.
#include "launcher/commands/slurm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "agent/run_files.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/past_runs.h"
#include "launcher/commands/slurm_links.h"
#include "launcher/display/verdict_text.h"
#include "launcher/environment/program.h"
#include "launcher/slurm/batch_script.h"
#include "launcher/slurm/slurm_commands.h"
#include "launcher/spec/job_spec.h"
#include "nlohmann/json.hpp"

namespace cadre::launcher {
namespace {

// The interval between requests to Slurm, whose controller serves all users.
constexpr absl::Duration kAskInterval = absl::Seconds(2);
constexpr absl::Duration kReadInterval = absl::Milliseconds(250);
// Following ends if the controller is away for longer.
constexpr absl::Duration kControllerTimeout = absl::Minutes(1);

// A growing file. It is opened again for each read, because on a shared file system only that shows
// for certain what another machine has written.
class GrowingFile {
 public:
  explicit GrowingFile(FILE* to) : to_(to) {}

  // Returns false if this process cannot write any more.
  bool ShowNew(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    error_ = fd < 0 ? errno : 0;
    if (fd < 0) return true;
    struct stat now;
    // A requeued job may start its file again.
    if (fstat(fd, &now) == 0 && now.st_size < offset_) offset_ = 0;
    char bytes[64 << 10];
    bool written = true;
    ssize_t got = 0;
    while (written && (got = pread(fd, bytes, sizeof(bytes), offset_)) > 0) {
      offset_ += got;
      written = fwrite(bytes, 1, got, to_) == static_cast<size_t>(got);
    }
    close(fd);
    return fflush(to_) == 0 && written;
  }

  // The errno of the last open; 0: it succeeded.
  int error() const { return error_; }

 private:
  FILE* const to_;
  off_t offset_ = 0;
  int error_ = 0;
};

class SlurmFollower {
 public:
  explicit SlurmFollower(const SlurmJobId& id) : id_(id) {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM}) sigaddset(&signals, signal);
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    signals_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~SlurmFollower() {
    if (signals_ >= 0) close(signals_);
  }

  int Run() {
    for (MonoTime answered = MonoNow();;) {
      const absl::StatusOr<SlurmJob> job = ShowJob(id_);
      if (job.ok()) {
        answered = MonoNow();
        job_ = *job;
        if (job_.array) {
          return Fail(
              kExitUsage,
              absl::StrCat("Slurm job ", id_, " is an array: follow one of its tasks, for example ",
                           id_, "_1"));
        }
        PrintState();
      } else if (absl::IsNotFound(job.status()) || MonoNow() > answered + kControllerTimeout) {
        return Fail(kExitUnavailable, job.status().message());
      }
      for (const MonoTime until = MonoNow() + kAskInterval; MonoNow() < until;) {
        if (!ShowOutput()) return kExitInternal;
        if (job.ok() && HasEnded(job_)) return End();
        if (const int signal = WaitForSignal()) return StopFollowing(signal);
      }
    }
  }

 private:
  void PrintState() {
    const std::string state = StateText(job_);
    if (state == printed_state_ || HasEnded(job_)) return;
    printed_state_ = state;
    Notice(absl::StrCat("Slurm job ", id_, " ", state));
  }

  bool ShowOutput() {
    if (job_.standard_output.empty()) return true;
    if (!output_.ShowNew(job_.standard_output)) return false;
    return job_.standard_error.empty() || job_.standard_error == job_.standard_output ||
           errors_.ShowNew(job_.standard_error);
  }

  // 0: no signal came.
  int WaitForSignal() {
    pollfd readable = {signals_, POLLIN, 0};
    signalfd_siginfo info;
    poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(kReadInterval)));
    return read(signals_, &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo)
                                                               : 0;
  }

  int StopFollowing(int signal) {
    return Fail(kExitSignalBase + signal,
                absl::StrCat("Slurm job ", id_, " continues; to cancel it: ", ScancelLine(id_),
                             "; to follow it again: ", FollowLine(id_)));
  }

  int End() {
    const std::string who = absl::StrCat("Slurm job ", id_, " (", job_.name, ") ");
    if (output_.error() != 0 && output_.error() != ENOENT) {
      Notice(absl::StrCat("cannot read ", job_.standard_output, ": ", strerror(output_.error())));
    } else if (output_.error() == ENOENT && job_.state != "CANCELLED") {
      Notice(absl::StrCat("there is no ", job_.standard_output,
                          " on this machine: is its directory shared with the nodes?"));
    }
    const absl::StatusOr<v1::Verdict> verdict = FindVerdict();
    if (verdict.ok()) {
      return Fail(verdict->exit_status(), absl::StrCat(who, OutcomeText(*verdict)));
    }
    return Fail(ExitStatusOf(job_),
                absl::StrCat(who, StateText(job_), ", exit code ", job_.exit_code, ":",
                             job_.exit_signal, "; Cadre left no verdict beside its script"));
  }

  // The launchers leave the verdict in a directory beside the script. One from before the job was
  // requeued does not count.
  absl::StatusOr<v1::Verdict> FindVerdict() const {
    const std::string beside = std::filesystem::path(job_.script).parent_path();
    const std::string directory = absl::StrCat(beside, "/slurm-", job_.number);
    struct stat found;
    if (beside.empty() || stat((directory + "/verdict.json").c_str(), &found) != 0 ||
        absl::TimeFromTimespec(found.st_mtim) < job_.started) {
      return absl::NotFoundError("none of this run");
    }
    return ReadVerdict(directory);
  }

  const SlurmJobId id_;
  int signals_ = -1;
  // As Slurm reported it last.
  SlurmJob job_;
  std::string printed_state_;
  GrowingFile output_{stdout};
  GrowingFile errors_{stderr};
};

// Shows the job's state, its output and how it ends. Blocks until the job ends, or until SIGINT or
// SIGTERM, which do not affect the job. Returns the command's exit status: the job's, or 128 +
// signal.
int FollowSlurmJob(const SlurmJobId& id) { return SlurmFollower(id).Run(); }

// Writes the script beside the launchers' files, where the verdict is looked for, and returns its
// path.
absl::StatusOr<std::string> WriteScript(const v1::JobSpec& spec, const std::string& script) {
  const std::string directory = absl::StrCat(spec.logs().dir(), "/", spec.name());
  RETURN_IF_ERROR(agent::MakeRunDirectory(spec.logs().dir(), spec.name()));
  const std::string path = directory + "/job.sh";
  RETURN_IF_ERROR(agent::WriteFile(path, script));
  return path;
}

}  // namespace

int SubmitToSlurm(const SlurmSubmission& submission) {
  const v1::JobSpec& spec = submission.spec;
  const auto script = SlurmScript(submission.path, spec, submission.requeues);
  if (!script.ok()) return Fail(kExitBadSpec, script.status().message());
  const absl::StatusOr<std::string> path = WriteScript(spec, *script);
  if (!path.ok()) return Fail(kExitUnavailable, path.status().message());
  const absl::StatusOr<SlurmJobId> id = Sbatch(*path);
  if (!id.ok()) return Fail(kExitUnavailable, id.status().message());
  const nlohmann::json json = {{"slurm_job", *id}, {"name", spec.name()}, {"script", *path}};
  const int printed =
      Print(submission.json ? json.dump() + "\n"
                            : absl::StrCat("submitted ", spec.name(), " as Slurm job ", *id,
                                           "; its script is ", *path, "\n"));
  if (printed != 0 || !submission.follow) return printed;
  return FollowSlurmJob(*id);
}

namespace {

int Script(const std::string& path, const Parsed& parsed) {
  absl::StatusOr<v1::JobSpec> spec = ReadSpecFile(path);
  if (!spec.ok()) return Fail(kExitBadSpec, spec.status().message());
  FillSpecDefaults(*spec);
  const absl::StatusOr<uint32_t> requeues = Requeues(parsed);
  if (!requeues.ok()) return Fail(kExitUsage, requeues.status().message());
  const absl::StatusOr<std::string> script = SlurmScript(path, *spec, *requeues);
  if (!script.ok()) return Fail(kExitBadSpec, script.status().message());
  return Print(*script);
}

// Makes this program Slurm's commands for those who have the directory on PATH.
int Install(const std::string& directory) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(directory, error);
  if (error) {
    return Fail(kExitUnavailable, absl::StrCat("cannot find the current directory: ",
                                               error.message(), "; give an absolute path"));
  }
  const std::string where = path.lexically_normal().string();
  const std::vector<std::string> names = SlurmNames();
  const absl::Status made = MakeLinks(ThisProgram(), names, where);
  if (!made.ok()) return Fail(kExitUnavailable, made.message());
  const char* const known = getenv("PATH");
  return Print(absl::StrCat("made ", absl::StrJoin(names, ", "), " in ", where, "\n",
                            PathAdvice(where, known == nullptr ? "" : known)));
}

int Run(const Parsed& parsed) {
  if (parsed.rest[0] == "script") return Script(parsed.rest[1], parsed);
  if (parsed.rest[0] == "install") return Install(parsed.rest[1]);
  if (parsed.rest[0] != "follow") {
    return Fail(kExitUsage, absl::StrCat("expected 'cadre slurm script FILE', 'cadre slurm follow "
                                         "JOBID' or 'cadre slurm install DIR', got '",
                                         parsed.rest[0], "'"));
  }
  const absl::Status number = CheckSlurmJobId(parsed.rest[1]);
  return number.ok() ? FollowSlurmJob(parsed.rest[1]) : Fail(kExitUsage, number.message());
}

}  // namespace

Command SlurmCommand() {
  Command command;
  command.name = "slurm";
  command.summary =
      "Write an sbatch script for a job spec, follow a Slurm job, or make Slurm's commands.";
  command.positionals = "script FILE | follow JOBID | install DIR";
  command.min_positionals = command.max_positionals = 2;
  command.flags = {RequeuesFlag()};
  command.run = Run;
  command.description =
      "The script starts one launcher per node, ends in time for a checkpoint when Slurm warns of\n"
      "the time limit or of preemption, and goes back into the queue. Slurm's own options are\n"
      "under 'slurm:' in the spec: partition, account, and any option of sbatch in extra.\n"
      "'cadre submit --slurm' writes it and hands it to sbatch.\n"
      "'follow' shows the job's state and what it writes, and exits with its exit status.\n"
      "'install' makes links with the names sbatch, srun, scancel, squeue, sacct, scontrol and\n"
      "sinfo to this program in DIR, where there is no Slurm. Run under these names it takes\n"
      "Slurm's flags, for the cluster of a 'cadre server'. 'cadre srun' is the same as srun.";
  return command;
}

}  // namespace cadre::launcher
