// cadre run: one node's share of a job.
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/adoption.h"
#include "agent/daemon.h"
#include "agent/run_files.h"
#include "agent/supervisor/client.h"
#include "base/duration.h"
#include "base/exit_codes.h"
#include "base/loopback_token.h"
#include "base/status_macros.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/etcd.h"
#include "launcher/commands/first_task.h"
#include "launcher/commands/hostfile_run.h"
#include "launcher/commands/http.h"
#include "launcher/commands/meeting.h"
#include "launcher/commands/slots.h"
#include "launcher/display/output_writer.h"
#include "launcher/display/run_display.h"
#include "launcher/environment/identity.h"
#include "launcher/flags/run_flags.h"
#include "launcher/flags/run_options.h"
#include "launcher/spec/reader.h"
#include "launcher/spec/scalars.h"

namespace cadre {
namespace {

// How long the end waits for a terminal or pipe that does not read.
constexpr absl::Duration kFlushTimeout = absl::Seconds(2);
// And for other nodes to take the verdict.
constexpr absl::Duration kDrainTimeout = absl::Seconds(2);

constexpr const char* kClusterVariables[] = {"CADRE_CLUSTER_PART", "CADRE_CLUSTER_NODE",
                                             "CADRE_CLUSTER_NODES"};

uint64_t RandomIncarnation() {
  uint64_t value = 0;
  // The kernel gives eight bytes at once; 0 would mean "none".
  while (getrandom(&value, sizeof(value), 0) != sizeof(value) || value == 0) {
  }
  return value;
}

std::string Absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

bool AsksForAdoption(const RunOptions& options) {
  return options.adopt_timeout > absl::ZeroDuration();
}

std::string NodeName(const RunOptions& options, const Meeting& meeting) {
  if (!options.node_name.empty()) return options.node_name;
  // One that is started again has another process id.
  if (AsksForAdoption(options)) return HostName();
  // Several launchers of one machine meet over loopback; their process ids tell them apart.
  if (!options.endpoints.empty() && meeting.loopback) {
    return absl::StrCat(HostName(), "-",
                        options.node_rank >= 0 ? static_cast<int64_t>(options.node_rank)
                                               : static_cast<int64_t>(getpid()));
  }
  return HostName();
}

OutputOptions Output(const RunOptions& options, uint32_t slots) {
  OutputOptions output = options.output;
  output.log_dir = options.job.logs().dir();
  for (uint32_t i = 0; i < slots; ++i) {
    const uint32_t only_file = options.redirects.Of(i) & ~options.tee.Of(i);
    output.standard_output.push_back({true, (only_file & 1) == 0});
    output.standard_error.push_back({true, (only_file & 2) == 0});
  }
  output.terminal_ranks.insert(options.job.logs().tee().begin(), options.job.logs().tee().end());
  return output;
}

// How a launcher that is started again knows this one; all but the name of its node is as the user
// gave it.
v1::AgentRun RunOf(const RunOptions& options, uint32_t slots) {
  v1::AgentRun run;
  run.set_job(options.job.name());
  run.set_node(options.node_name.empty() ? HostName() : options.node_name);
  run.set_working_dir(Absolute("."));
  for (const Endpoint& endpoint : options.endpoints) {
    absl::StrAppend(run.mutable_rendezvous(), HostPort(endpoint.host, endpoint.port), ",");
  }
  *run.mutable_command() = options.job.command();
  run.set_slots(slots);
  return run;
}

DaemonOptions Daemon(const RunOptions& options, const Meeting& meeting, uint32_t slots) {
  DaemonOptions daemon;
  daemon.core.job = options.job.name();
  daemon.core.incarnation = RandomIncarnation();
  daemon.core.server = meeting.endpoint;
  daemon.core.serves = meeting.core != nullptr;
  daemon.core.connect_timeout = FromProto(options.job.rendezvous().join_timeout());
  daemon.core.orphan_timeout = options.orphan_timeout;
  daemon.core.strict_fencing = options.strict_fencing;
  v1::Join& join = daemon.core.join;
  join.set_node(NodeName(options, meeting));
  // Two agents of one host are told apart by the node's name in every line.
  join.set_host(options.node_name.empty() ? HostName() : options.node_name);
  join.set_address(options.local_addr.empty() ? meeting.address : options.local_addr);
  join.set_slots(slots);
  *join.mutable_spec() = options.job;
  join.set_wanted_node_rank(options.node_rank);
  for (const std::string& node : options.expected_nodes) join.add_expected_nodes(node);
  join.set_master_addr(options.master_addr);
  join.set_master_port(options.master_port);
  join.set_strict_fencing(options.strict_fencing);
  join.set_part(options.part);
  if (AsksForAdoption(options)) {
    *join.mutable_adopt_timeout() = ToProto(options.adopt_timeout);
    daemon.adopt_timeout = options.adopt_timeout;
    daemon.run = RunOf(options, slots);
  }
  daemon.output = Output(options, slots);
  daemon.env_style = options.env_style;
  daemon.gpus_per_worker_own = options.gpus_per_worker_own;
  daemon.virtual_local_rank = options.virtual_local_rank;
  daemon.bind = options.job.placement().bind();
  return daemon;
}

RunDisplayOptions Look(const RunOptions& options) {
  RunDisplayOptions look = DetectTerminal(options.no_progress);
  look.json = options.json;
  look.timeline = options.timeline;
  look.log_dir = options.job.logs().dir();
  look.nodes = options.job.nodes();
  return look;
}

// The dashboard of what this launcher serves, if it is asked for. Null: it is not, or there is
// nothing to show.
absl::StatusOr<std::unique_ptr<Dashboard>> StartDashboard(const RunOptions& options,
                                                          const Meeting& meeting,
                                                          RunDisplay& display) {
  if (options.http.empty()) return nullptr;
  if (meeting.server == nullptr && meeting.core == nullptr) {
    display.Line("--http: another launcher serves, so there is nothing to show here");
    return nullptr;
  }
  ASSIGN_OR_RETURN(DashboardOptions http,
                   ReadHttp(options.http, options.token_file, options.tls_dir));
  http.log_dir = options.job.logs().dir();
  Serving serving;
  if (meeting.server != nullptr) {
    serving = [server = meeting.server.get()] { return server->Serving(); };
  } else {
    // Not the dashboard's to delete.
    serving = [core = std::shared_ptr<CoreThread>(std::shared_ptr<void>(), meeting.core.get())] {
      return core;
    };
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Dashboard> dashboard,
                   Dashboard::Start(http, std::move(serving)));
  display.Line(absl::StrCat("dashboard at ", HttpAddress(http, *dashboard)));
  return dashboard;
}

// Who started this launcher and gave it the token holds its standard input open: when that ends,
// so does the job, as by SIGTERM.
void EndWithStandardInput() {
  std::thread([] {
    char byte;
    ssize_t got = 0;
    while ((got = read(STDIN_FILENO, &byte, 1)) > 0 || (got < 0 && errno == EINTR)) {
    }
    kill(getpid(), SIGTERM);
  }).detach();
}

[[noreturn]] void EndProcess(int status) {
  EndLoopbackTokens();
  _exit(status);
}

// From here on everything is known; what fails is the machine's or the server's doing. `ended` is
// told the exit status.
int Start(const RunOptions& options, const std::optional<EtcdOptions>& etcd, uint32_t slots,
          const std::function<void(int)>& ended) {
  std::vector<std::string> notices = options.notices;
  FoundWorkers found;
  if (AsksForAdoption(options)) found = FindAdoption(RunOf(options, slots), &notices);
  // Before gRPC, whose threads must never be in a process that forks.
  absl::StatusOr<std::unique_ptr<supervisor::Client>> supervisor =
      found.adoption ? std::move(found.adoption->supervisor) : supervisor::Client::Start();
  if (!supervisor.ok()) return Fail(kExitInternal, supervisor.status().message());
  absl::StatusOr<Meeting> meeting = ArrangeMeeting(options, etcd);
  if (!meeting.ok()) {
    const bool usage = absl::IsInvalidArgument(meeting.status());
    // Without a goodbye to the supervisor: workers that it has kept so far wait for the next one.
    const int status = Fail(usage ? kExitUsage : kExitUnavailable, meeting.status().message());
    ended(status);
    EndProcess(status);
  }
  if (options.token_file == "-") EndWithStandardInput();
  OutputWriter writer;
  RunDisplay display(Look(options), writer);
  for (const std::string& notice : notices) display.Line(notice);
  for (const uint32_t local_rank : options.output.terminal_local_ranks) {
    if (local_rank < slots) continue;
    display.Line(absl::StrCat("--local-ranks-filter: no local rank ", local_rank,
                              " here; this node runs ", slots, " workers"));
  }
  if (!meeting->serves.empty()) {
    display.Line(absl::StrCat("serving the rendezvous at ", meeting->serves,
                              meeting->replica != nullptr ? ", in reserve until it leads" : ""));
  }
  const auto dashboard = StartDashboard(options, *meeting, display);
  if (!dashboard.ok()) {
    const bool usage = absl::IsInvalidArgument(dashboard.status());
    const int status = Fail(usage ? kExitUsage : kExitUnavailable, dashboard.status().message());
    ended(status);
    EndProcess(status);
  }
  DaemonOptions daemon = Daemon(options, *meeting, slots);
  daemon.adoption = std::move(found.adoption);
  daemon.unfit = std::move(found.unfit);
  const absl::StatusOr<Exit> exit =
      RunAgent(daemon, *std::move(supervisor), *meeting->link, display);
  if (*dashboard != nullptr) (*dashboard)->Finish(kHttpFinishTimeout);
  if (meeting->server != nullptr) meeting->server->Shutdown(kDrainTimeout);
  // The next server need not wait for this one's lease to end.
  meeting->replica.reset();
  writer.Flush(kFlushTimeout);
  for (const std::string& loss : writer.Losses()) Fail(0, loss);
  if (!meeting->serves.empty() && !meeting->launch_token_file.empty()) {
    unlink(meeting->launch_token_file.c_str());
  }
  const int status = exit.ok() ? exit->status : Fail(kExitInternal, exit.status().message());
  ended(status);
  // Workers, sockets and files are cleared away; tearing down what is left only takes time.
  fflush(stdout);
  EndProcess(status);
}

absl::StatusOr<std::optional<v1::JobSpec>> SpecOf(const Settings& settings,
                                                  const std::optional<Identity>& identity) {
  const std::string path = settings.GetOr("spec", "");
  if (path.empty()) return std::optional<v1::JobSpec>();
  if (identity.has_value() && identity->part != 0) {
    // As it was submitted; the agent has nothing to say about it.
    v1::JobSpec spec;
    std::ifstream file(path, std::ios::binary);
    if (file && spec.ParseFromIstream(&file)) return std::optional<v1::JobSpec>(std::move(spec));
    return absl::InvalidArgumentError(absl::StrCat(path, " is no spec that 'cadre agent' wrote"));
  }
  absl::StatusOr<v1::JobSpec> read = ReadSpecFile(path);
  if (!read.ok()) return read.status();
  return std::optional<v1::JobSpec>(*std::move(read));
}

// Found out before a node joins, not when its first worker is to start.
absl::Status CheckLogDir(const std::string& flag, const std::string& directory) {
  if (directory.empty()) return absl::OkStatus();
  if (directory[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": the current directory, below which ", directory,
                     " is to be, was removed; change to another one"));
  }
  const absl::Status made = MakeDirectories(directory);
  if (!made.ok()) return absl::InvalidArgumentError(absl::StrCat(flag, ": ", made.message()));
  if (access(directory.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot write in ", directory, ": ",
                                                 strerror(errno), "; choose a directory of yours"));
}

// Before the log directory, which mostly lies in it and would be made.
absl::Status CheckWorkingDir(const std::string& directory) {
  struct stat info;
  if (stat(directory.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode) && access(directory.c_str(), X_OK) == 0) return absl::OkStatus();
    if (!S_ISDIR(info.st_mode)) errno = ENOTDIR;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("working_dir: ", strerror(errno), " on this node: ", directory));
}

// Where it is missing every worker of every restart would say so, and no launcher.
absl::Status CheckScript(const RunOptions& options) {
  if (options.script.empty()) return absl::OkStatus();
  const std::filesystem::path path =
      std::filesystem::path(options.job.working_dir()) / options.script;
  if (access(path.c_str(), R_OK) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("script ", options.script, ": ", strerror(errno), " on this node",
                   path == options.script ? "" : absl::StrCat(" (", path.string(), ")")));
}

// The agent takes what is blocked from a descriptor; all others do what they do to any program.
void BlockSignals(const std::set<int>& signals) {
  sigset_t blocked;
  sigemptyset(&blocked);
  for (const int signal : signals) sigaddset(&blocked, signal);
  // A scheduler's warning that the node is wanted back.
  sigaddset(&blocked, SIGUSR1);
  sigprocmask(SIG_SETMASK, &blocked, nullptr);
}

// This node's share of the job, by the one launcher that does it.
int RunNode(const Settings& settings, const std::optional<Identity>& identity,
            const std::function<void(int)>& ended) {
  absl::StatusOr<std::optional<v1::JobSpec>> spec = SpecOf(settings, identity);
  if (!spec.ok()) return Fail(kExitBadSpec, spec.status().message());
  absl::StatusOr<RunOptions> options = ResolveRun(settings, *std::move(spec), identity);
  if (!options.ok()) return Fail(kExitUsage, options.status().message());
  // What was submitted may be right, and another node have what this one lacks.
  const bool of_cluster = options->part != 0;
  const int lacking = of_cluster ? kExitUnavailable : kExitUsage;
  const absl::StatusOr<uint32_t> slots = CountSlots(
      options->job, options->gpus_per_worker_own || options->virtual_local_rank, ThisMachine());
  if (!slots.ok()) return Fail(lacking, slots.status().message());
  if (of_cluster) {
    const absl::Status here = CheckWorkingDir(options->job.working_dir());
    if (!here.ok()) return Fail(lacking, here.message());
  }
  const absl::Status script = CheckScript(*options);
  if (!script.ok()) return Fail(lacking, script.message());
  options->job.mutable_logs()->set_dir(Absolute(options->job.logs().dir()));
  const absl::Status logs =
      CheckLogDir(of_cluster ? "logs.dir" : "--log-dir", options->job.logs().dir());
  if (!logs.ok()) return Fail(lacking, logs.message());
  const absl::StatusOr<std::optional<EtcdOptions>> etcd =
      EtcdFrom(settings, absl::StrCat("/cadre/run/", options->job.name(), "/"));
  if (!etcd.ok()) return Fail(kExitUsage, etcd.status().message());
  BlockSignals(options->signals);
  return Start(*options, *etcd, *slots, ended);
}

// Every host's share, of which this launcher does none.
int RunHosts(const Parsed& parsed, const Settings& settings) {
  const absl::StatusOr<std::vector<HostfileHost>> hosts =
      ReadHostfile(settings.GetOr("hostfile", ""));
  if (!hosts.ok()) return Fail(kExitUsage, hosts.status().message());
  Identity identity;
  identity.source = "the host file";
  identity.launch = "hostfile";
  identity.nodes = static_cast<uint32_t>(hosts->size());
  identity.endpoint_host = (*hosts)[0].name;
  if (settings.Get("standalone").has_value()) {
    return Fail(kExitUsage, "--standalone is this node alone; leave it or --hostfile out");
  }
  if (const auto endpoint = settings.Get("rdzv-endpoint")) {
    return Fail(kExitUsage, absl::StrCat(endpoint->origin,
                                         ": with --hostfile this launcher serves "
                                         "the rendezvous itself; leave one of them out"));
  }
  absl::StatusOr<std::optional<v1::JobSpec>> spec = SpecOf(settings, identity);
  if (!spec.ok()) return Fail(kExitBadSpec, spec.status().message());
  const absl::StatusOr<RunOptions> options = ResolveRun(settings, *std::move(spec), identity);
  if (!options.ok()) return Fail(kExitUsage, options.status().message());
  BlockSignals(options->signals);
  const absl::StatusOr<int> status = RunOnHosts(parsed, settings, *options, *hosts,
                                                [](const std::string& line) { Fail(0, line); });
  if (status.ok()) return *status;
  const bool usage = absl::IsInvalidArgument(status.status());
  return Fail(usage ? kExitUsage : kExitUnavailable, status.status().message());
}

// srun and mpirun bind each process to its share of the cores; the one that runs the workers needs
// the others' too. The kernel keeps it within what the job may use.
void UseAllCores() {
  cpu_set_t all;
  memset(&all, 0xff, sizeof(all));
  sched_setaffinity(0, sizeof(all), &all);
}

int Run(const Parsed& parsed) {
  if (const auto shell = parsed.Get("print-completion")) return PrintCompletion(*shell);
  std::map<std::string, std::string> environment = ReadEnvironment();
  const absl::StatusOr<std::optional<Identity>> identity = DetectIdentity(environment);
  if (!identity.ok()) return Fail(kExitUsage, identity.status().message());
  // A launcher that one of its workers starts is nobody's part.
  for (const char* name : kClusterVariables) unsetenv(name);
  const Settings settings(parsed, std::move(environment), RunFlags());
  if (settings.Get("hostfile").has_value()) return RunHosts(parsed, settings);
  const bool together = identity->has_value() && (*identity)->local_tasks > 1 &&
                        !settings.Get("standalone").has_value();
  if (!together) return RunNode(settings, *identity, [](int) {});
  // Where a launch has no name, what started all of this node's tasks has a process id.
  const std::string launch =
      (*identity)->launch.empty() ? absl::StrCat("parent-", getppid()) : (*identity)->launch;
  const std::string name = absl::StrCat(launch, ".", (*identity)->node_name);
  if ((*identity)->local_task > 0) {
    const absl::StatusOr<int> status = FollowFirstTask(name);
    return status.ok() ? *status : Fail(kExitUnavailable, status.status().message());
  }
  absl::StatusOr<std::unique_ptr<FirstTask>> first = FirstTask::Open(name);
  if (!first.ok()) return Fail(kExitUnavailable, first.status().message());
  UseAllCores();
  const uint32_t others = (*identity)->local_tasks - 1;
  const auto ended = [&](int status) { (*first)->End(status, others); };
  const int status = RunNode(settings, *identity, ended);
  ended(status);
  return status;
}

}  // namespace

Command RunCommand() {
  Command command;
  command.name = "run";
  command.summary = "Run a program on this node as its part of a job.";
  command.positionals = "[--] PROGRAM [ARGUMENT...]";
  command.takes_program = true;
  command.spec_flag = "spec";
  command.flags = RunFlags();
  command.run = Run;
  command.description =
      "Run it on every node, like torchrun. A program that ends in .py runs under python3 -u. "
      "Times\n"
      "are written 90s, 10m, 1h30m. Every flag can also be set as CADRE_<NAME>, and torchrun's as\n"
      "PET_<NAME>. 'cadre run job.yaml [options]' reads the job from a file.\n"
      "python3 is $PYTHON_EXEC where that is set, otherwise the first python3 on PATH.\n"
      "\n"
      "Exit status: 0 when all workers succeeded; the root cause's own status, or 128 + signal;\n"
      "64 usage; 65 bad spec; 69 server unreachable; 75 worth trying later; 70 internal error;\n"
      "124 timed out: a hang, the start timeout or the total timeout.";
  return command;
}

}  // namespace cadre
