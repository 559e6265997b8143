#include "launcher/commands/slurm_follow.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/past_runs.h"
#include "launcher/display/verdict_text.h"

namespace cadre::launcher {
namespace {

// Between two questions to Slurm, whose controller serves everybody.
constexpr absl::Duration kAskInterval = absl::Seconds(2);
constexpr absl::Duration kReadInterval = absl::Milliseconds(250);
// A controller that is away for longer ends it.
constexpr absl::Duration kPatience = absl::Minutes(1);

// A file that grows. Opened anew for each look: on a shared file system it is only then that what
// another machine has written is sure to be seen.
class GrowingFile {
 public:
  explicit GrowingFile(FILE* to) : to_(to) {}

  // False: this process cannot write any more.
  bool ShowWhatIsNew(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    error_ = fd < 0 ? errno : 0;
    if (fd < 0) return true;
    struct stat now;
    // A job that was put back into the queue may begin its file anew.
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

  // Why it could not be opened last; 0: it could.
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
    for (MonoTime heard = MonoNow();;) {
      const absl::StatusOr<SlurmJob> job = ShowJob(id_);
      if (job.ok()) {
        heard = MonoNow();
        job_ = *job;
        SayState();
      } else if (absl::IsNotFound(job.status()) || MonoNow() > heard + kPatience) {
        return Fail(kExitUnavailable, job.status().message());
      }
      for (const MonoTime until = MonoNow() + kAskInterval; MonoNow() < until;) {
        if (!ShowOutput()) return kExitInternal;
        if (job.ok() && HasEnded(job_)) return End();
        if (const int signal = WaitForSignal()) return Leave(signal);
      }
    }
  }

 private:
  void SayState() {
    const std::string state = StateText(job_);
    if (state == said_ || HasEnded(job_)) return;
    said_ = state;
    Fail(0, absl::StrCat("Slurm job ", id_, " ", state));
  }

  bool ShowOutput() {
    if (job_.standard_output.empty()) return true;
    if (!output_.ShowWhatIsNew(job_.standard_output)) return false;
    return job_.standard_error.empty() || job_.standard_error == job_.standard_output ||
           errors_.ShowWhatIsNew(job_.standard_error);
  }

  // 0: none came.
  int WaitForSignal() {
    pollfd readable = {signals_, POLLIN, 0};
    signalfd_siginfo info;
    poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(kReadInterval)));
    return read(signals_, &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo)
                                                               : 0;
  }

  int Leave(int signal) {
    return Fail(kExitSignalBase + signal,
                absl::StrCat("Slurm job ", id_, " goes on; to cancel it: ", ScancelLine(id_),
                             "; to follow it again: ", FollowLine(id_)));
  }

  int End() {
    const std::string who = absl::StrCat("Slurm job ", id_, " (", job_.name, ") ");
    if (output_.error() != 0 && output_.error() != ENOENT) {
      Fail(0, absl::StrCat("cannot read ", job_.standard_output, ": ", strerror(output_.error())));
    } else if (output_.error() == ENOENT && job_.state != "CANCELLED") {
      Fail(0, absl::StrCat("no ", job_.standard_output,
                           " here: is that directory shared with the nodes?"));
    }
    const absl::StatusOr<v1::Verdict> verdict = FindVerdict();
    if (verdict.ok()) {
      return Fail(verdict->exit_status(), absl::StrCat(who, OutcomeText(*verdict)));
    }
    return Fail(ExitStatusOf(job_),
                absl::StrCat(who, StateText(job_), ", exit code ", job_.exit_code, ":",
                             job_.exit_signal, "; no verdict of Cadre's lies beside its script"));
  }

  // The script lies beside it. What an earlier run left there does not count.
  absl::StatusOr<v1::Verdict> FindVerdict() const {
    const std::string directory = std::filesystem::path(job_.script).parent_path();
    struct stat found;
    if (directory.empty() || stat((directory + "/verdict.json").c_str(), &found) != 0 ||
        absl::TimeFromTimespec(found.st_mtim) < job_.started) {
      return absl::NotFoundError("none of this run");
    }
    return ReadVerdict(directory);
  }

  const SlurmJobId id_;
  int signals_ = -1;
  // As Slurm said last.
  SlurmJob job_;
  std::string said_;
  GrowingFile output_{stdout};
  GrowingFile errors_{stderr};
};

}  // namespace

int FollowSlurmJob(const SlurmJobId& id) { return SlurmFollower(id).Run(); }

}  // namespace cadre::launcher
