// cadre run: one node's share of a job.
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "launcher/attach/etcd.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/run_checks.h"
#include "launcher/commands/run_hosts.h"
#include "launcher/commands/run_node.h"
#include "launcher/display/output_writer.h"
#include "launcher/display/run_display.h"
#include "launcher/environment/blocked_signals.h"
#include "launcher/environment/first_task.h"
#include "launcher/environment/identity.h"
#include "launcher/environment/launch_board.h"
#include "launcher/environment/slots.h"
#include "launcher/flags/run_flags.h"
#include "launcher/flags/run_options.h"
#include "launcher/spec/reader.h"
#include "launcher/spec/scalars.h"

namespace cadre::launcher {
namespace {

constexpr const char* kClusterVariables[] = {"CADRE_CLUSTER_PART", "CADRE_CLUSTER_NODE",
                                             "CADRE_CLUSTER_NODES"};

// How long the end waits for a terminal that does not read.
constexpr absl::Duration kFlushTimeout = absl::Seconds(2);

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

// The agent takes what is blocked from a descriptor; all others do what they do to any program.
void BlockSignals(std::set<int> signals) {
  // A scheduler's warning that the node is wanted back.
  signals.insert(SIGUSR1);
  BlockOnly(signals);
}

// On how many nodes an mpirun started launchers, and which of them this is: its variables do not
// say, so all nodes count together. Where somebody else has said where and how many, that holds.
absl::Status MeetOtherNodes(const Settings& settings, const std::optional<v1::JobSpec>& spec,
                            Identity& identity) {
  ASSIGN_OR_RETURN(const bool standalone, settings.Switch("standalone"));
  const bool nodes =
      settings.Get("nnodes").has_value() || (spec.has_value() && spec->nodes().min() > 0);
  const bool told = nodes && settings.Get("rdzv-endpoint").has_value();
  if (identity.tasks == 0 || identity.nodes > 0 || standalone || told) return absl::OkStatus();
  if (identity.launch.empty() && identity.pmi >= 0) {
    const absl::StatusOr<std::string> job = AskPmiForJob(identity.pmi);
    if (job.ok()) identity.launch = MpiLaunchName(*job);
  }
  // Without a name they do not find each other; what is missing then is said where it is needed.
  if (identity.launch.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const absl::Duration patience,
                   ParseDuration(settings.GetOr("join-timeout", "10m")));
  ASSIGN_OR_RETURN(const LaunchBoard board, LaunchBoard::Open(identity.launch));
  if (identity.node_name.empty()) identity.node_name = HostName();
  ASSIGN_OR_RETURN(const std::vector<LaunchBoard::Node> all,
                   board.Meet({identity.task, identity.local_tasks, identity.node_name},
                              identity.tasks, patience));
  identity.nodes = static_cast<uint32_t>(all.size());
  // A host that mpirun was given twice starts two launchers, which are nodes of their own.
  std::map<std::string, int> times;
  for (const LaunchBoard::Node& node : all) ++times[node.name];
  for (const LaunchBoard::Node& node : all) {
    std::string name = node.name;
    if (times[name] > 1) absl::StrAppend(&name, "-", node.task);
    if (node.task == identity.task) {
      identity.node_rank = static_cast<int>(identity.node_names.size());
      identity.node_name = name;
    }
    identity.node_names.push_back(std::move(name));
  }
  identity.serves = identity.node_rank == 0;
  identity.endpoint_host = all[0].name;
  identity.endpoint_port = PortFor(identity.launch);
  return absl::OkStatus();
}

// Says why this node takes no part; where it was to serve, to the others of its launch too, which
// hear that wherever they share its home directory. A token of the user's own does not say that
// they do not.
int Refuse(const std::optional<Identity>& identity, int status, absl::string_view why) {
  if (identity.has_value() && identity->serves == true && identity->nodes > 1 &&
      !identity->launch.empty()) {
    const absl::StatusOr<LaunchBoard> board = LaunchBoard::Open(identity->launch);
    if (board.ok()) board->Fails(why);
  }
  return Fail(status, why);
}

// This node's share of the job, by the one launcher that does it.
int RunHere(const Settings& settings, std::optional<Identity> identity,
            const std::function<void(int)>& ended) {
  const absl::Status descriptors = CheckDescriptors();
  if (!descriptors.ok()) {
    return Refuse(identity, kExitUnavailable, descriptors.message());
  }
  absl::StatusOr<std::optional<v1::JobSpec>> spec = SpecOf(settings, identity);
  if (!spec.ok()) return Refuse(identity, kExitBadSpec, spec.status().message());
  if (identity.has_value()) {
    const absl::Status met = MeetOtherNodes(settings, *spec, *identity);
    const int status = absl::IsDeadlineExceeded(met) ? kExitUnavailable : kExitUsage;
    if (!met.ok()) return Fail(status, met.message());
  }
  const auto refuse = [&](int status, const absl::Status& why) {
    return Refuse(identity, status, why.message());
  };
  absl::StatusOr<RunOptions> options =
      ResolveRun(settings, *std::move(spec), identity, IsForPythonHere);
  if (!options.ok()) return refuse(kExitUsage, options.status());
  // A spec that was submitted may be right, and another node have what this one lacks.
  const int lacking = options->part != 0 ? kExitUnavailable : kExitUsage;
  const absl::StatusOr<uint32_t> slots = CountSlots(
      options->job, options->workers.gpus_per_worker_own || options->workers.virtual_local_rank,
      ThisMachine());
  if (!slots.ok()) return refuse(lacking, slots.status());
  const absl::Status bound = CheckBinding(options->job, *slots, ThisMachine());
  if (!bound.ok()) return refuse(lacking, bound);
  const absl::Status here = CheckNode(*options);
  if (!here.ok()) return refuse(lacking, here);
  const absl::StatusOr<std::optional<log::EtcdOptions>> etcd =
      EtcdFrom(settings, absl::StrCat("/cadre/run/", options->job.name(), "/"));
  if (!etcd.ok()) return refuse(kExitUsage, etcd.status());
  BlockSignals(options->signals);
  return RunNode(*options, *etcd, *slots, ended);
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
  const absl::StatusOr<bool> standalone = settings.Switch("standalone");
  if (!standalone.ok()) return Fail(kExitUsage, standalone.status().message());
  if (*standalone) {
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
  OutputWriter writer;
  RunDisplayOptions look = DetectTerminal(options->no_progress);
  look.nodes = options->job.nodes();
  RunDisplay display(look, writer);
  const auto say = [&](const std::string& line) {
    if (look.live) return display.Line(line);
    Fail(0, line);
  };
  const absl::StatusOr<int> status =
      RunOnHosts(parsed, settings, *options, *hosts, look.live ? &display : nullptr, say);
  writer.Flush(kFlushTimeout);
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
  const absl::StatusOr<bool> standalone = settings.Switch("standalone");
  if (!standalone.ok()) return Fail(kExitUsage, standalone.status().message());
  const bool together = identity->has_value() && (*identity)->local_tasks > 1 && !*standalone;
  if (!together) return RunHere(settings, *identity, [](int) {});
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
  const int status = RunHere(settings, *identity, ended);
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
      "python3 is $PYTHON_EXEC where that is set, otherwise that of the virtual environment where\n"
      "this command is installed unless another is active, otherwise the first on PATH.\n"
      "\n"
      "Exit status: 0 when all workers succeeded; the root cause's own status, or 128 + signal;\n"
      "64 usage; 65 bad spec; 69 server unreachable; 75 worth trying later; 70 internal error;\n"
      "124 timed out: a hang, the start timeout or the total timeout.";
  return command;
}

}  // namespace cadre::launcher
