// Reads the signals that end a launcher, and the one that suspends it, from descriptors. One
// thread.
#ifndef CADRE_AGENT_SIGNAL_READER_H_
#define CADRE_AGENT_SIGNAL_READER_H_

#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cadre::agent {

class SignalReader {
 public:
  // Reads the signals that the calling thread blocks.
  static absl::StatusOr<std::unique_ptr<SignalReader>> Make() {
    sigset_t signals;
    sigprocmask(SIG_BLOCK, nullptr, &signals);
    const int fd = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
    if (fd < 0) return absl::ErrnoToStatus(errno, "cannot make a signalfd");
    return std::unique_ptr<SignalReader>(new SignalReader(fd));
  }
  ~SignalReader() { close(fd_); }
  int fd() const { return fd_; }

  std::vector<int> Read() {
    std::vector<int> signals;
    signalfd_siginfo info;
    while (read(fd_, &info, sizeof(info)) == sizeof(info)) {
      signals.push_back(static_cast<int>(info.ssi_signo));
    }
    return signals;
  }

 private:
  explicit SignalReader(int fd) : fd_(fd) {}
  const int fd_;
};

// Reads Ctrl-Z (SIGTSTP). It does not reach the workers, each of which has its own session. It is
// caught and not blocked like the other signals, so that programs started meanwhile inherit its
// original disposition. Only one object may exist at a time.
class SuspendReader {
 public:
  // If SIGTSTP is ignored it stays ignored.
  static absl::StatusOr<std::unique_ptr<SuspendReader>> Make() {
    event_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (event_ < 0) return absl::ErrnoToStatus(errno, "cannot make an eventfd");
    auto reader = std::unique_ptr<SuspendReader>(new SuspendReader);
    struct sigaction before = {};
    sigaction(SIGTSTP, nullptr, &before);
    if (before.sa_handler != SIG_IGN) reader->Catch(&Note);
    return reader;
  }
  ~SuspendReader() {
    if (caught_) Catch(SIG_DFL);
    close(event_);
  }
  int fd() const { return event_; }

  // Suspends this process with all its threads and returns when it is continued. Returns at once if
  // there is no shell to continue it, since the kernel suspends nothing then.
  void Suspend() {
    uint64_t times = 0;
    if (read(event_, &times, sizeof(times)) != sizeof(times)) return;
    Catch(SIG_DFL);
    raise(SIGTSTP);
    Catch(&Note);
  }

 private:
  SuspendReader() = default;
  static void Note(int) {
    const int before = errno;
    const uint64_t once = 1;
    // The counter overflows only after so many pending signals that one more does not matter.
    [[maybe_unused]] const ssize_t written = write(event_, &once, sizeof(once));
    errno = before;
  }
  void Catch(void (*handler)(int)) {
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigaction(SIGTSTP, &action, nullptr);
    caught_ = true;
  }

  inline static int event_ = -1;
  bool caught_ = false;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_SIGNAL_READER_H_
