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
#include "launcher/environment/program.h"
#include "launcher/environment/signals.h"
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
// A scheduler's warning that it will take the nodes back.
constexpr int kPreemptionSignal = SIGUSR1;
// Enough for a hundred thousand hosts with options.
constexpr size_t kMaxHostfileBytes = size_t{16} << 20;
constexpr absl::Duration kDrainTimeout = absl::Seconds(2);
// The interval at which it is checked whether the job has ended.
constexpr absl::Duration kPollInterval = absl::Seconds(1);
// The same while the job's state is shown on a terminal.
constexpr absl::Duration kLivePollInterval = absl::Milliseconds(200);
constexpr size_t kChunkBytes = 64 << 10;
// How long ssh may take to end after the job has.
constexpr absl::Duration kEndTimeout = absl::Seconds(5);

std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// Flags that concern this launcher only, or that have another value on every host.
bool IsOwnFlag(const std::string& flag) {
  static const auto* const ours =
      new std::set<std::string>{"hostfile",  "ssh-command", "rdzv-endpoint", "token-file",
                                "node-rank", "node-name",   "rdzv-id",       "job-name"};
  return ours->count(flag) > 0;
}

// The environment variables that workers on other machines get, as with DeepSpeed and mpirun: those
// of Cadre, of communication libraries and of Python. Others need --env.
constexpr absl::string_view kForwarded[] = {"CADRE_", "PET_",   "NCCL_", "GLOO_",
                                            "UCX_",   "TORCH_", "OMP_",  "PYTHON"};

bool IsForwarded(absl::string_view name) {
  if (name == "CADRE_HOSTFILE" || name == "CADRE_TOKEN_FILE" || name == "PYTHON_EXEC") return false;
  return std::any_of(std::begin(kForwarded), std::end(kForwarded),
                     [&](absl::string_view prefix) { return absl::StartsWith(name, prefix); });
}

// NAME=value for the shell, each after a space. The interpreter is the one that a program would
// have here, and the directory of a virtual or conda environment comes first on PATH there too.
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

// The endpoint of the job's server, as the hosts reach it, and what they run.
struct HostfilePlan {
  std::string cadre;
  std::string working_dir;
  std::string endpoint;
  std::string job;
  size_t hosts = 1;
};

// The shell command for one host, with its `rank` counted from 0: this launcher's flags, and those
// that place the host in the job.
std::string RemoteCommand(const HostfilePlan& plan, const Parsed& parsed, const Settings& settings,
                          const HostfileHost& host, size_t rank) {
  std::string line = absl::StrCat("cd ", Quoted(plan.working_dir), " && exec env",
                                  Variables(settings), " ", Quoted(plan.cadre), " run");
  for (const Flag& flag : RunFlags()) {
    const auto given = parsed.flags.find(flag.name);
    if (given == parsed.flags.end() || IsOwnFlag(flag.name)) continue;
    for (std::string value : given->second) {
      // A variable of this machine.
      if (flag.name == "env" && !absl::StrContains(value, '=')) {
        absl::StrAppend(&value, "=", settings.environment().at(value));
      }
      absl::StrAppend(&line, " --", flag.name,
                      flag.value.empty() ? "" : absl::StrCat("=", Quoted(value)));
    }
  }
  const bool nodes_given = settings.Get("nnodes").has_value() || SetsProperty(settings, "nodes");
  if (!nodes_given && !settings.Get("spec").has_value()) {
    absl::StrAppend(&line, " --nnodes=", plan.hosts);
  }
  const bool workers_given =
      settings.Get("nproc-per-node").has_value() || SetsProperty(settings, "workers_per_node");
  if (host.slots > 0 && !workers_given) {
    absl::StrAppend(&line, " --nproc-per-node=", host.slots);
  }
  absl::StrAppend(&line, " --rdzv-endpoint=", Quoted(plan.endpoint), " --node-rank=", rank,
                  " --node-name=", Quoted(host.name), " --job-name=", plan.job,
                  " --token-file=- --no-progress");
  if (!parsed.rest.empty()) absl::StrAppend(&line, " --");
  for (const std::string& word : parsed.rest) absl::StrAppend(&line, " ", Quoted(word));
  return line;
}

// One ssh with the launcher at its other end; or the launcher itself if the host is this machine.
struct Remote {
  HostfileHost host;
  bool here = false;
  pid_t pid = -1;
  int pidfd = -1;
  // Its standard input, kept open while the job runs.
  int input = -1;
  // Its standard output and error, if they pass through this launcher.
  struct Stream {
    ScopedFd pipe;
    std::string rest;  // an incomplete line
  };
  Stream output, errors;
  int status = 0;
};

// Makes a pipe for what the process writes to `fd`. False: it failed with errno.
bool MakePipe(posix_spawn_file_actions_t* files, int fd, ScopedFd* write_end, ScopedFd* read_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  read_end->Reset(ends[0]);
  write_end->Reset(ends[1]);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  posix_spawn_file_actions_adddup2(files, ends[1], fd);
  return true;
}

// `captured`: its output passes through this launcher.
absl::Status StartRemote(const std::vector<std::string>& argv, const std::string& token,
                         bool captured, Remote& remote) {
  int input[2];
  if (pipe2(input, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, input[0], STDIN_FILENO);
  // These must stay open until the process has been started.
  ScopedFd output, errors;
  const bool has_pipes =
      !captured || (MakePipe(&files, STDOUT_FILENO, &output, &remote.output.pipe) &&
                    MakePipe(&files, STDERR_FILENO, &errors, &remote.errors.pipe));
  const int pipe_error = errno;
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // Ctrl-C is handled by this launcher: it ends the job in order, and ssh then ends by itself.
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
  const int error = has_pipes ? posix_spawnp(&remote.pid, pointers[0], &files, &attributes,
                                             pointers.data(), environ)
                              : pipe_error;
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  close(input[0]);
  remote.input = input[1];
  if (error != 0) return absl::ErrnoToStatus(error, absl::StrCat("cannot start ", argv[0]));
  remote.pidfd = static_cast<int>(syscall(SYS_pidfd_open, remote.pid, 0));
  if (remote.pidfd < 0) return absl::ErrnoToStatus(errno, "pidfd_open");
  const std::string line = token + "\n";
  // A pipe has room for a line; if ssh has died already, its end is noticed elsewhere.
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

  // Waits until all have ended.
  int Wait() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : options_.signals) sigaddset(&signals, signal);
    sigaddset(&signals, kPreemptionSignal);
    signals_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    while (Running() > 0) {
      std::vector<pollfd> fds = {{signals_, POLLIN, 0}};
      for (const Remote& remote : remotes_) fds.push_back({remote.pidfd, POLLIN, 0});
      const absl::Duration interval = display_ != nullptr ? kLivePollInterval : kPollInterval;
      if (display_ != nullptr && display_->TakesLines()) {
        for (const Remote& remote : remotes_) {
          for (const Remote::Stream* stream : {&remote.output, &remote.errors}) {
            if (stream->pipe.ok()) fds.push_back({stream->pipe.get(), POLLIN, 0});
          }
        }
      }
      const int ready =
          poll(fds.data(), fds.size(), static_cast<int>(interval / absl::Milliseconds(1)));
      EndLateHosts(MonoNow());
      Show();
      if (ready < 0) continue;
      signalfd_siginfo info;
      while (read(signals_, &info, sizeof(info)) == sizeof(info)) {
        OnSignal(static_cast<int>(info.ssi_signo));
      }
      for (size_t i = 0; i < remotes_.size(); ++i) {
        if (fds[i + 1].revents != 0) OnHostEnded(remotes_[i]);
      }
    }
    if (display_ != nullptr) display_->Finish({});
    const absl::StatusOr<v1::JobStatus> job = core_.Status(options_.job.name());
    if (!too_few_hosts_ && job.ok() && job->has_verdict()) return job->verdict().exit_status();
    if (cancelled_ == kPreemptionSignal) return kExitTryLater;
    if (cancelled_ > 0) return kExitSignalBase + cancelled_;
    return status_;
  }

 private:
  size_t Running() const {
    return std::count_if(remotes_.begin(), remotes_.end(),
                         [](const Remote& remote) { return remote.pidfd >= 0; });
  }

  // Shows what the remote launchers have printed, and the state of the job.
  void Show() {
    if (display_ == nullptr) return;
    for (Remote& remote : remotes_) {
      if (display_->TakesLines()) ShowLines(remote);
    }
    const absl::StatusOr<v1::JobStatus> job = core_.Status(options_.job.name());
    // Once the job has ended, the remote launchers print how.
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

  // Shows what is in the pipes now. It does not wait for their end, because processes that the
  // launcher started may keep them open.
  void ShowRemainingOutput(Remote& remote) {
    for (Remote::Stream* stream : {&remote.output, &remote.errors}) {
      for (int left = 0; stream->pipe.ok();) {
        if (ioctl(stream->pipe.get(), FIONREAD, &left) != 0 || left == 0) break;
        ShowLines(remote);
      }
      stream->pipe.Reset();
    }
  }

  // A launcher that has joined ends by itself; an ssh that hangs, or a shell that waits for input,
  // does not.
  void EndLateHosts(MonoTime now) {
    if (!ended_at_.has_value() && JobHasEnded()) ended_at_ = now;
    if (!ended_at_.has_value() || now < *ended_at_ + kEndTimeout) return;
    const int signal = now < *ended_at_ + 2 * kEndTimeout ? SIGTERM : SIGKILL;
    for (const Remote& remote : remotes_) {
      if (remote.pidfd >= 0) kill(remote.pid, signal);
    }
  }

  void OnSignal(int signal) {
    const bool again = cancelled_ > 0;
    const bool warning = signal == kPreemptionSignal;
    if (warning && again) return;
    cancelled_ = signal;
    const bool known =
        core_
            .Cancel(options_.job.name(),
                    absl::StrCat(warning ? "SIGUSR1 " : "", "at the host that started it"), signal,
                    warning ? v1::PREEMPTED : v1::CANCELLED)
            .ok();
    if (known && !again) return;
    // No launcher has joined yet, or the user does not want to wait.
    for (const Remote& remote : remotes_) {
      if (remote.pidfd >= 0) kill(remote.pid, again ? SIGKILL : SIGTERM);
    }
  }

  bool JobHasEnded() const {
    const absl::StatusOr<v1::JobStatus> job = core_.Status(options_.job.name());
    return job.ok() && job->has_verdict();
  }

  void OnHostEnded(Remote& remote) {
    int status = 0;
    if (waitpid(remote.pid, &status, 0) != remote.pid) return;
    if (display_ != nullptr) ShowRemainingOutput(remote);
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
                      too_early ? ", but the job has not ended: did ssh run another command there?"
                      : ssh_failed ? ": ssh could not reach it or run cadre there"
                                   : ""));
    if (Running() >= options_.job.nodes().min()) return;
    too_few_hosts_ = true;
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
  bool too_few_hosts_ = false;
  // The status of the first host that failed.
  int status_ = 0;
  std::optional<MonoTime> ended_at_;
};

// Whether a host's launcher is started directly, as MPI's launchers do: the host is this machine
// and the user is the same, so that no ssh to oneself is needed.
bool StartsHere(const HostfileHost& host) {
  const Interruptible wait;
  const absl::StatusOr<ResolvedEndpoint> at = Resolve({host.name, 1});
  if (!at.ok() || !at->here) return false;
  const size_t user = host.destination.find('@');
  const passwd* const entry = getpwuid(geteuid());
  return user == std::string::npos ||
         (entry != nullptr && host.destination.substr(0, user) == entry->pw_name);
}

// The address at which the hosts reach this machine: loopback only if all of them are this machine.
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
  // A host that ssh reaches late must not begin the job again after it has ended.
  config.runs_once = true;
  host::CoreThread core(config);
  ASSIGN_OR_RETURN(const std::unique_ptr<service::Server> server,
                   service::Server::Start(listen, core));
  std::error_code error;
  const std::string log_dir = options.job.logs().dir();
  // Lets the user's commands on this machine find the job, and also its files if the hosts share
  // them.
  const std::unique_ptr<LocalControl> control = LocalControl::Start(
      log_dir.empty() ? "" : std::filesystem::absolute(log_dir, error).lexically_normal().string(),
      options.job.name(),
      // This function owns the core.
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
