// The signals that end a launcher, and the one that suspends it, read from a descriptor. One
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

// Closes the descriptor with the scope.
class SignalReader {
 public:
  // For the signals that the calling thread blocks.
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

// Ctrl-Z (SIGTSTP), which reaches no worker: each has a session of its own. It is caught, and not
// blocked like the others, so that programs that are started meanwhile have it as it was. One at a
// time.
class SuspendReader {
 public:
  // Where it is ignored it stays so.
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

  // Suspends this process with all its threads. Returns once it is to go on: at once where no shell
  // would see to that, since the kernel suspends nothing there.
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
    // It is full after so many that nobody waits for one more.
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
