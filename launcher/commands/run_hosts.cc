#include "launcher/commands/run_hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "launcher/attach/local_control.h"
#include "launcher/attach/security.h"
#include "launcher/environment/endpoint.h"
#include "launcher/environment/interruptible.h"
#include "launcher/environment/python.h"
#include "launcher/flags/run_flags.h"
#include "launcher/spec/text_file.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/service/server.h"
#include "rpc/channels.h"

extern char** environ;

namespace cadre::launcher {
namespace {

constexpr char kSsh[] = "ssh -o BatchMode=yes";
constexpr int kSshFailed = 255;
// A scheduler's, that the nodes are wanted back.
constexpr int kWarning = SIGUSR1;
// A hundred thousand hosts with what may stand beside them.
constexpr size_t kMaxHostfileBytes = size_t{16} << 20;
constexpr absl::Duration kDrainTimeout = absl::Seconds(2);
// Between two looks whether the job has ended.
constexpr absl::Duration kLook = absl::Seconds(1);
// Where the job's state is shown on a terminal.
constexpr absl::Duration kLiveLook = absl::Milliseconds(200);
constexpr size_t kChunkBytes = 64 << 10;
// Time for ssh to end once the job has.
constexpr absl::Duration kEndTimeout = absl::Seconds(5);

std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// Flags that are about this launcher, or that every host gets a value of its own for.
bool IsOurs(const std::string& flag) {
  static const auto* const ours =
      new std::set<std::string>{"hostfile",  "ssh-command", "rdzv-endpoint", "token-file",
                                "node-rank", "node-name",   "rdzv-id",       "job-name"};
  return ours->count(flag) > 0;
}

// What the workers on other machines get of this command's environment, as people know it of
// DeepSpeed and of mpirun: what speaks of Cadre, of communication and of Python. Anything else by
// --env.
constexpr absl::string_view kForwarded[] = {"CADRE_", "PET_",   "NCCL_", "GLOO_",
                                            "UCX_",   "TORCH_", "OMP_",  "PYTHON"};

bool IsForwarded(absl::string_view name) {
  if (name == "CADRE_HOSTFILE" || name == "CADRE_TOKEN_FILE" || name == "PYTHON_EXEC") return false;
  return std::any_of(std::begin(kForwarded), std::end(kForwarded),
                     [&](absl::string_view prefix) { return absl::StartsWith(name, prefix); });
}

// NAME=value for the shell, each with a space before it. The interpreter is the one that a program
// would have here, and the folder of a virtual environment or of conda's is the first there, too.
std::string Variables(const Settings& settings) {
  const std::map<std::string, std::string>& environment = settings.environment();
  std::string line;
  for (const auto& [name, value] : environment) {
    if (IsForwarded(name)) absl::StrAppend(&line, " ", Quoted(absl::StrCat(name, "=", value)));
  }
  std::string python = PythonFor(environment, ThisProgram());
  for (const char* name : {"CONDA_PREFIX", "VIRTUAL_ENV"}) {
    const auto active = environment.find(name);
    if (active == environment.end() || active->second.empty()) continue;
    absl::StrAppend(&line, " ", Quoted(absl::StrCat(name, "=", active->second)),
                    " PATH=", Quoted(active->second + "/bin"), ":\"$PATH\"");
    if (python.empty()) python = active->second + "/bin/python3";
  }
  if (!python.empty()) absl::StrAppend(&line, " ", Quoted("PYTHON_EXEC=" + python));
  return line;
}

// Where the job is served, as the hosts reach it, and what they run.
struct HostfilePlan {
  std::string cadre;
  std::string working_dir;
  std::string endpoint;
  std::string job;
  size_t hosts = 1;
};

// The line for the shell of one host, its `rank` counting from 0: the flags that this launcher was
// given, with what places the host in the job.
std::string RemoteCommand(const HostfilePlan& plan, const Parsed& parsed, const Settings& settings,
                          const HostfileHost& host, size_t rank) {
  std::string line = absl::StrCat("cd ", Quoted(plan.working_dir), " && exec env",
                                  Variables(settings), " ", Quoted(plan.cadre), " run");
  for (const Flag& flag : RunFlags()) {
    const auto given = parsed.flags.find(flag.name);
    if (given == parsed.flags.end() || IsOurs(flag.name)) continue;
    for (std::string value : given->second) {
      // A variable of this machine's.
      if (flag.name == "env" && !absl::StrContains(value, '=')) {
        absl::StrAppend(&value, "=", settings.environment().at(value));
      }
      absl::StrAppend(&line, " --", flag.name,
                      flag.value.empty() ? "" : absl::StrCat("=", Quoted(value)));
    }
  }
  if (!settings.Get("nnodes").has_value() && !settings.Get("spec").has_value()) {
    absl::StrAppend(&line, " --nnodes=", plan.hosts);
  }
  if (host.slots > 0 && !settings.Get("nproc-per-node").has_value()) {
    absl::StrAppend(&line, " --nproc-per-node=", host.slots);
  }
  absl::StrAppend(&line, " --rdzv-endpoint=", Quoted(plan.endpoint), " --node-rank=", rank,
                  " --node-name=", Quoted(host.name), " --job-name=", plan.job,
                  " --token-file=- --no-progress");
  if (!parsed.rest.empty()) absl::StrAppend(&line, " --");
  for (const std::string& word : parsed.rest) absl::StrAppend(&line, " ", Quoted(word));
  return line;
}

// One ssh and the launcher at its other end; or the launcher itself, where the host is this one.
struct Remote {
  HostfileHost host;
  bool here = false;
  pid_t pid = -1;
  int pidfd = -1;
  // Its standard input; kept open while the job runs.
  int input = -1;
  // What it says, where that goes through this launcher: standard output and error.
  struct Stream {
    ScopedFd pipe;
    std::string rest;  // a line that has not ended
  };
  Stream output, errors;
  int status = 0;
};

// For what the process will write there. False: errno says why.
bool LayPipe(posix_spawn_file_actions_t* files, int fd, ScopedFd* write_end, ScopedFd* read_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  read_end->Reset(ends[0]);
  write_end->Reset(ends[1]);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  posix_spawn_file_actions_adddup2(files, ends[1], fd);
  return true;
}

// `captured`: what it says comes to this launcher.
absl::Status StartRemote(const std::vector<std::string>& argv, const std::string& token,
                         bool captured, Remote& remote) {
  int input[2];
  if (pipe2(input, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, input[0], STDIN_FILENO);
  // Kept until the process has them.
  ScopedFd output, errors;
  const bool laid = !captured || (LayPipe(&files, STDOUT_FILENO, &output, &remote.output.pipe) &&
                                  LayPipe(&files, STDERR_FILENO, &errors, &remote.errors.pipe));
  const int laying_error = errno;
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // Ctrl-C is for this launcher: it ends the job in order, and ssh then ends by itself.
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigfillset(&signals);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  std::vector<char*> pointers;
  for (const std::string& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  const int error =
      laid ? posix_spawnp(&remote.pid, pointers[0], &files, &attributes, pointers.data(), environ)
           : laying_error;
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  close(input[0]);
  remote.input = input[1];
  if (error != 0) return absl::ErrnoToStatus(error, absl::StrCat("cannot start ", argv[0]));
  remote.pidfd = static_cast<int>(syscall(SYS_pidfd_open, remote.pid, 0));
  if (remote.pidfd < 0) return absl::ErrnoToStatus(errno, "pidfd_open");
  const std::string line = token + "\n";
  // A pipe takes a line at once; ssh that has died already is seen by its end.
  [[maybe_unused]] const ssize_t written = write(remote.input, line.data(), line.size());
  return absl::OkStatus();
}

class HostsRun {
 public:
  HostsRun(const RunOptions& options, host::CoreThread& core, agent::Display* display,
           const std::function<void(const std::string&)>& say)
      : options_(options), core_(core), display_(display), say_(say) {}
  ~HostsRun() {
    for (Remote& remote : remotes_) {
      if (remote.pidfd >= 0) close(remote.pidfd);
      if (remote.input >= 0) close(remote.input);
    }
    if (signals_ >= 0) close(signals_);
  }

  absl::Status Start(const std::vector<std::string>& argv, const std::string& token,
                     const HostfileHost& host, bool here) {
    remotes_.emplace_back();
    remotes_.back().host = host;
    remotes_.back().here = here;
    return StartRemote(argv, token, display_ != nullptr, remotes_.back());
  }

  // Until all have ended.
  int Wait() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : options_.signals) sigaddset(&signals, signal);
    sigaddset(&signals, kWarning);
    signals_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    while (Running() > 0) {
      std::vector<pollfd> fds = {{signals_, POLLIN, 0}};
      for (const Remote& remote : remotes_) fds.push_back({remote.pidfd, POLLIN, 0});
      const absl::Duration look = display_ != nullptr ? kLiveLook : kLook;
      if (display_ != nullptr && display_->TakesLines()) {
        for (const Remote& remote : remotes_) {
          for (const Remote::Stream* stream : {&remote.output, &remote.errors}) {
            if (stream->pipe.ok()) fds.push_back({stream->pipe.get(), POLLIN, 0});
          }
        }
      }
      const int ready =
          poll(fds.data(), fds.size(), static_cast<int>(look / absl::Milliseconds(1)));
      EndWithTheJob(MonoNow());
      Show();
      if (ready < 0) continue;
      signalfd_siginfo info;
      while (read(signals_, &info, sizeof(info)) == sizeof(info)) {
        OnSignal(static_cast<int>(info.ssi_signo));
      }
      for (size_t i = 0; i < remotes_.size(); ++i) {
        if (fds[i + 1].revents != 0) OnEnd(remotes_[i]);
      }
    }
    if (display_ != nullptr) display_->Finish({});
    const absl::StatusOr<v1::JobStatus> job = core_.Status(options_.job.name());
    if (!missing_ && job.ok() && job->has_verdict()) return job->verdict().exit_status();
    if (cancelled_ == kWarning) return kExitTryLater;
    if (cancelled_ > 0) return kExitSignalBase + cancelled_;
    return status_;
  }

 private:
  size_t Running() const {
    return std::count_if(remotes_.begin(), remotes_.end(),
                         [](const Remote& remote) { return remote.pidfd >= 0; });
  }

  // What the launchers have said, and how the job is now.
  void Show() {
    if (display_ == nullptr) return;
    for (Remote& remote : remotes_) {
      if (display_->TakesLines()) ShowLines(remote);
    }
    const absl::StatusOr<v1::JobStatus> job = core_.Status(options_.job.name());
    // Once it has ended they say how.
    if (job.ok() && !job->has_verdict()) display_->Status(*job, {});
  }

  void ShowLines(Remote& remote) {
    for (const bool to_stderr : {false, true}) {
      Remote::Stream& stream = to_stderr ? remote.errors : remote.output;
      if (!stream.pipe.ok()) continue;
      std::string chunk(kChunkBytes, '\0');
      const ssize_t got = read(stream.pipe.get(), chunk.data(), chunk.size());
      if (got < 0) continue;
      stream.rest.append(chunk, 0, static_cast<size_t>(got));
      if (got == 0) {
        stream.pipe.Reset();
        if (!stream.rest.empty()) stream.rest += "\n";
      }
      const size_t end = stream.rest.rfind('\n');
      if (end == std::string::npos) continue;
      display_->WorkerLines(stream.rest.substr(0, end + 1), to_stderr);
      stream.rest.erase(0, end + 1);
    }
  }

  // What is there now: what it has started in its turn may keep the pipes open.
  void ShowLastWords(Remote& remote) {
    for (Remote::Stream* stream : {&remote.output, &remote.errors}) {
      for (int left = 0; stream->pipe.ok();) {
        if (ioctl(stream->pipe.get(), FIONREAD, &left) != 0 || left == 0) break;
        ShowLines(remote);
      }
      stream->pipe.Reset();
    }
  }

  // A launcher that came ends by itself; an ssh that hangs, or a shell that waits for input, does
  // not.
  void EndWithTheJob(MonoTime now) {
    if (!ended_at_.has_value() && JobHasEnded()) ended_at_ = now;
    if (!ended_at_.has_value() || now < *ended_at_ + kEndTimeout) return;
    const int signal = now < *ended_at_ + 2 * kEndTimeout ? SIGTERM : SIGKILL;
    for (const Remote& remote : remotes_) {
      if (remote.pidfd >= 0) kill(remote.pid, signal);
    }
  }

  void OnSignal(int signal) {
    const bool again = cancelled_ > 0;
    const bool warning = signal == kWarning;
    if (warning && again) return;
    cancelled_ = signal;
    const bool known =
        core_
            .Cancel(options_.job.name(),
                    absl::StrCat(warning ? "SIGUSR1 " : "", "at the host that started it"), signal,
                    warning ? v1::PREEMPTED : v1::CANCELLED)
            .ok();
    if (known && !again) return;
    // No launcher has come so far, or the user does not want to wait.
    for (const Remote& remote : remotes_) {
      if (remote.pidfd >= 0) kill(remote.pid, again ? SIGKILL : SIGTERM);
    }
  }

  bool JobHasEnded() const {
    const absl::StatusOr<v1::JobStatus> job = core_.Status(options_.job.name());
    return job.ok() && job->has_verdict();
  }

  void OnEnd(Remote& remote) {
    int status = 0;
    if (waitpid(remote.pid, &status, 0) != remote.pid) return;
    if (display_ != nullptr) ShowLastWords(remote);
    close(remote.pidfd);
    remote.pidfd = -1;
    remote.status = ExitStatusOfWait(status);
    const bool too_early = remote.status == 0 && !JobHasEnded();
    if (remote.status == 0 && !too_early) return;
    if (status_ == 0 && too_early) status_ = kExitUnavailable;
    const bool ssh_failed = remote.status == kSshFailed && !remote.here;
    if (status_ == 0) status_ = ssh_failed ? kExitUnavailable : remote.status;
    if (JobHasEnded()) return;
    say_(absl::StrCat("host ", remote.host.name, " ended with status ", remote.status,
                      too_early    ? ", but the job has not: did ssh run another command there?"
                      : ssh_failed ? ": ssh could not reach it or run cadre there"
                                   : ""));
    if (Running() >= options_.job.nodes().min()) return;
    missing_ = true;
    if (core_.Cancel(options_.job.name(), absl::StrCat("host ", remote.host.name, " is missing"), 0)
            .ok()) {
      return;
    }
    for (const Remote& other : remotes_) {
      if (other.pidfd >= 0) kill(other.pid, SIGTERM);
    }
  }

  const RunOptions& options_;
  host::CoreThread& core_;
  agent::Display* const display_;
  const std::function<void(const std::string&)>& say_;
  std::vector<Remote> remotes_;
  int signals_ = -1;
  int cancelled_ = 0;
  // Too few hosts were left.
  bool missing_ = false;
  // Of the first host that failed.
  int status_ = 0;
  std::optional<MonoTime> ended_at_;
};

// What starts the launcher of a host: this one, as MPI's launchers do, where the host is this
// machine and this user's. That needs no ssh to oneself.
bool StartsHere(const HostfileHost& host) {
  const Interruptible wait;
  const absl::StatusOr<ResolvedEndpoint> at = Resolve({host.name, 1});
  if (!at.ok() || !at->here) return false;
  const size_t user = host.destination.find('@');
  const passwd* const entry = getpwuid(geteuid());
  return user == std::string::npos ||
         (entry != nullptr && host.destination.substr(0, user) == entry->pw_name);
}

// Where this machine is reached from the hosts: loopback only when all of them are this machine.
absl::StatusOr<std::string> ServingAddress(const std::vector<HostfileHost>& hosts) {
  const Interruptible wait;
  std::string address = "127.0.0.1";
  for (const HostfileHost& host : hosts) {
    absl::StatusOr<ResolvedEndpoint> at = Resolve({host.name, 1});
    if (!at.ok()) return absl::InvalidArgumentError(at.status().message());
    if (at->loopback) continue;
    address = AddressTowards(at->address, 1);
    if (!address.empty()) return address;
    return absl::UnavailableError(absl::StrCat("there is no route to host ", host.name));
  }
  return address;
}

}  // namespace

absl::StatusOr<std::vector<HostfileHost>> ReadHostfile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadTextFile(path, kMaxHostfileBytes);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat("--hostfile: ", text.status().message()));
  }
  return ParseHostfile(*text, path);
}

absl::StatusOr<int> RunOnHosts(const Parsed& parsed, const Settings& settings,
                               const RunOptions& options, const std::vector<HostfileHost>& hosts,
                               agent::Display* display,
                               const std::function<void(const std::string&)>& say) {
  rpc::QuietGrpcLog();
  const std::vector<std::string> ssh =
      absl::StrSplit(settings.GetOr("ssh-command", kSsh), ' ', absl::SkipEmpty());
  if (ssh.empty()) return absl::InvalidArgumentError("--ssh-command: expected a command");
  service::ServerOptions listen;
  ASSIGN_OR_RETURN(listen.host, ServingAddress(hosts));
  listen.token = RandomToken();
  listen.keeps_nothing = true;
  ASSIGN_OR_RETURN(const ResolvedEndpoint at, Resolve({listen.host, 1}));
  ASSIGN_OR_RETURN(listen.security, SecurityOf(options.tls_dir, options.insecure,
                                               FoundToken{listen.token}, at.loopback));
  CoreConfig config = host::NewCoreConfig();
  config.only_job = options.job.name();
  // A host that ssh reaches late does not begin what the others have ended.
  config.runs_once = true;
  host::CoreThread core(config);
  ASSIGN_OR_RETURN(const std::unique_ptr<service::Server> server,
                   service::Server::Start(listen, core));
  std::error_code error;
  const std::string log_dir = options.job.logs().dir();
  // The user's commands on this machine find the job; its files where the hosts share them.
  const std::unique_ptr<LocalControl> control = LocalControl::Start(
      log_dir.empty() ? "" : std::filesystem::absolute(log_dir, error).lexically_normal().string(),
      options.job.name(),
      // Not the reader's to delete.
      [&core] { return std::shared_ptr<host::CoreThread>(std::shared_ptr<void>(), &core); });
  HostfilePlan plan;
  plan.cadre = std::filesystem::read_symlink("/proc/self/exe", error).string();
  plan.working_dir = std::filesystem::current_path(error).string();
  plan.endpoint = HostPort(listen.host, server->port());
  plan.job = options.job.name();
  plan.hosts = hosts.size();
  HostsRun run(options, core, display, say);
  for (size_t i = 0; i < hosts.size(); ++i) {
    const bool here = StartsHere(hosts[i]);
    std::vector<std::string> argv = {"/bin/sh", "-c"};
    if (!here) {
      argv = ssh;
      argv.push_back(hosts[i].destination);
    }
    argv.push_back(RemoteCommand(plan, parsed, settings, hosts[i], i));
    RETURN_IF_ERROR(run.Start(argv, listen.token, hosts[i], here));
  }
  const int status = run.Wait();
  server->Shutdown(kDrainTimeout);
  return status;
}

}  // namespace cadre::launcher
