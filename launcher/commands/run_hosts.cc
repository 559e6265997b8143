#include "launcher/commands/run_hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <spawn.h>
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
#include "base/status_macros.h"
#include "base/token.h"
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
  int status = 0;
};

absl::Status StartRemote(const std::vector<std::string>& argv, const std::string& token,
                         Remote& remote) {
  int input[2];
  if (pipe2(input, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, input[0], STDIN_FILENO);
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
      posix_spawnp(&remote.pid, pointers[0], &files, &attributes, pointers.data(), environ);
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
  HostsRun(const RunOptions& options, host::CoreThread& core,
           const std::function<void(const std::string&)>& say)
      : options_(options), core_(core), say_(say) {}
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
    return StartRemote(argv, token, remotes_.back());
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
      const int ready =
          poll(fds.data(), fds.size(), static_cast<int>(kLook / absl::Milliseconds(1)));
      EndWithTheJob(MonoNow());
      if (ready < 0) continue;
      signalfd_siginfo info;
      while (read(signals_, &info, sizeof(info)) == sizeof(info)) {
        OnSignal(static_cast<int>(info.ssi_signo));
      }
      for (size_t i = 0; i < remotes_.size(); ++i) {
        if (fds[i + 1].revents != 0) OnEnd(remotes_[i]);
      }
    }
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
  HostfilePlan plan;
  plan.cadre = std::filesystem::read_symlink("/proc/self/exe", error).string();
  plan.working_dir = std::filesystem::current_path(error).string();
  plan.endpoint = HostPort(listen.host, server->port());
  plan.job = options.job.name();
  plan.hosts = hosts.size();
  HostsRun run(options, core, say);
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
