#include "tests/testing/process.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace cadre {
namespace {

std::vector<std::string> Environment(const std::map<std::string, std::string>& changes) {
  std::map<std::string, std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) all[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : changes) {
    if (value.empty()) {
      all.erase(name);
    } else {
      all[name] = value;
    }
  }
  std::vector<std::string> result;
  for (const auto& [name, value] : all) result.push_back(absl::StrCat(name, "=", value));
  return result;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& s : strings) result.push_back(s.data());
  result.push_back(nullptr);
  return result;
}

// Runs in the child, between fork and exec.
[[noreturn]] void Become(char** argv, char** env, const std::string& working_dir) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (!working_dir.empty() && chdir(working_dir.c_str()) != 0) _exit(126);
  execvpe(argv[0], argv, env);
  _exit(127);
}

int MillisUntil(absl::Time deadline) {
  const int64_t ms = absl::ToInt64Milliseconds(deadline - absl::Now());
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 1000000));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Process>> Process::Start(const ProcessOptions& options) {
  if (options.argv.empty()) return absl::InvalidArgumentError("no program given");
  std::vector<std::string> argv = options.argv;
  std::vector<std::string> env = Environment(options.env);
  std::vector<char*> argv_pointers = Pointers(argv);
  std::vector<char*> env_pointers = Pointers(env);

  std::unique_ptr<Process> process(new Process());
  if (options.terminal) {
    struct winsize size = {};
    size.ws_row = 24;
    size.ws_col = 80;
    int master = -1;
    process->pid_ = forkpty(&master, nullptr, nullptr, &size);
    if (process->pid_ == 0) {
      Become(argv_pointers.data(), env_pointers.data(), options.working_dir);
    }
    if (process->pid_ < 0) return absl::ErrnoToStatus(errno, "forkpty");
    fcntl(master, F_SETFD, FD_CLOEXEC);
    process->streams_[0].fd = master;
  } else {
    int out[2], err[2];
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
      return absl::ErrnoToStatus(errno, "pipe2");
    }
    process->pid_ = fork();
    if (process->pid_ == 0) {
      dup2(open("/dev/null", O_RDONLY), 0);
      dup2(out[1], 1);
      dup2(err[1], 2);
      Become(argv_pointers.data(), env_pointers.data(), options.working_dir);
    }
    close(out[1]);
    close(err[1]);
    process->streams_[0].fd = out[0];
    process->streams_[1].fd = err[0];
    if (process->pid_ < 0) return absl::ErrnoToStatus(errno, "fork");
  }
  process->pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, process->pid_, 0));
  if (process->pidfd_ < 0) return absl::ErrnoToStatus(errno, "pidfd_open");
  return process;
}

Process::~Process() {
  Kill(SIGKILL);
  Wait(absl::Seconds(10));
  for (Stream& stream : streams_) {
    if (stream.fd >= 0) close(stream.fd);
  }
  if (pidfd_ >= 0) close(pidfd_);
}

void Process::Kill(int signal) {
  if (!status_.has_value() && pidfd_ >= 0)
    syscall(SYS_pidfd_send_signal, pidfd_, signal, nullptr, 0);
}

void Process::Type(absl::string_view bytes) {
  if (write(streams_[0].fd, bytes.data(), bytes.size()) < 0) Kill(SIGKILL);
}

void Process::Resize(int rows, int columns) {
  struct winsize size = {};
  size.ws_row = static_cast<unsigned short>(rows);
  size.ws_col = static_cast<unsigned short>(columns);
  ioctl(streams_[0].fd, TIOCSWINSZ, &size);
}

bool Process::ReadMore(absl::Duration timeout) { return ReadSome(absl::Now() + timeout); }

void Process::TakeLines(Stream& stream, absl::string_view bytes) {
  stream.all.append(bytes.data(), bytes.size());
  for (const char c : bytes) {
    if (c == '\n') {
      lines_.push_back(std::move(stream.partial));
      stream.partial.clear();
    } else if (c != '\r') {
      stream.partial.push_back(c);
    }
  }
}

bool Process::ReadSome(absl::Time deadline) {
  pollfd fds[2];
  Stream* owners[2];
  int count = 0;
  for (Stream& stream : streams_) {
    if (stream.fd < 0) continue;
    owners[count] = &stream;
    fds[count++] = {stream.fd, POLLIN, 0};
  }
  if (count == 0) return false;
  if (poll(fds, count, MillisUntil(deadline)) <= 0) return true;
  for (int i = 0; i < count; ++i) {
    if (fds[i].revents == 0) continue;
    char buffer[65536];
    const ssize_t got = read(fds[i].fd, buffer, sizeof(buffer));
    if (got > 0) {
      TakeLines(*owners[i], absl::string_view(buffer, got));
    } else if (got == 0 || errno != EINTR) {
      close(fds[i].fd);
      owners[i]->fd = -1;
    }
  }
  return true;
}

std::optional<std::string> Process::WaitForLine(absl::string_view text, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    while (next_line_ < lines_.size()) {
      const std::string& line = lines_[next_line_++];
      if (absl::StrContains(line, text)) return line;
    }
    if (absl::Now() >= deadline || !ReadSome(deadline)) return std::nullopt;
  }
}

std::vector<std::string> Process::WaitForLines(absl::string_view text, size_t count,
                                               absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  std::vector<std::string> found;
  while (found.size() < count) {
    std::optional<std::string> line = WaitForLine(text, deadline - absl::Now());
    if (!line.has_value()) break;
    found.push_back(*std::move(line));
  }
  return found;
}

std::optional<int> Process::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!status_.has_value()) {
    // Output is read meanwhile, so that a full pipe never blocks the process.
    pollfd fds[3] = {{pidfd_, POLLIN, 0}, {streams_[0].fd, POLLIN, 0}, {streams_[1].fd, POLLIN, 0}};
    if (poll(fds, 3, MillisUntil(deadline)) == 0) return std::nullopt;
    if (fds[1].revents != 0 || fds[2].revents != 0) ReadSome(absl::Now());
    int raw = 0;
    if ((fds[0].revents & POLLIN) != 0 && waitpid(pid_, &raw, 0) == pid_) {
      status_ = WIFSIGNALED(raw) ? 128 + WTERMSIG(raw) : WEXITSTATUS(raw);
    }
  }
  // Reads what it wrote before it ended, without waiting: grandchildren may hold the pipes open.
  size_t before = 0;
  do {
    before = streams_[0].all.size() + streams_[1].all.size();
  } while (ReadSome(absl::Now()) && streams_[0].all.size() + streams_[1].all.size() > before);
  return status_;
}

absl::StatusOr<std::unique_ptr<Process>> RunToEnd(const ProcessOptions& options,
                                                  absl::Duration timeout) {
  absl::StatusOr<std::unique_ptr<Process>> process = Process::Start(options);
  if (process.ok() && !(*process)->Wait(timeout).has_value()) {
    return absl::DeadlineExceededError(
        absl::StrCat(options.argv[0], " still runs after ", absl::FormatDuration(timeout), "\n",
                     (*process)->standard_output(), (*process)->standard_error()));
  }
  return process;
}

std::string OutputOf(const Process& process) {
  return absl::StrCat("--- stdout\n", process.standard_output(), "--- stderr\n",
                      process.standard_error());
}

bool IsAlive(pid_t pid) {
  const std::string stat = ReadFileOrEmpty(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && name_end + 2 < stat.size() && stat[name_end + 2] != 'Z';
}

bool WaitGone(pid_t pid, absl::Duration timeout) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return !IsAlive(pid);
  pollfd poll_fd = {fd, POLLIN, 0};
  const bool gone = poll(&poll_fd, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) == 1;
  close(fd);
  return gone;
}

int FreePort() {
  // The ports are below the range from which the kernel takes ports for connections: a server that
  // is restarted must find its port free, and clients that try it meanwhile take theirs from that
  // range.
  constexpr int kFirst = 10000, kLast = 32000;
  std::random_device random;
  while (true) {
    const int port = kFirst + static_cast<int>(random() % (kLast - kFirst));
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
    if (free) return port;
  }
}

std::string MakeTempDir(absl::string_view prefix) {
  const char* root = getenv("TEST_TMPDIR");
  std::string path = absl::StrCat(root == nullptr ? "/tmp" : root, "/", prefix, "XXXXXX");
  return mkdtemp(path.data()) == nullptr ? "" : path;
}

std::string ReadFileOrEmpty(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

}  // namespace cadre
