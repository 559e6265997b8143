// cadre run: one node's share of a job.
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "launcher/attach/etcd.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/run_checks.h"
#include "launcher/commands/run_hosts.h"
#include "launcher/commands/run_node.h"
#include "launcher/environment/blocked_signals.h"
#include "launcher/environment/first_task.h"
#include "launcher/environment/identity.h"
#include "launcher/environment/slots.h"
#include "launcher/flags/run_flags.h"
#include "launcher/flags/run_options.h"
#include "launcher/spec/reader.h"

namespace cadre::launcher {
namespace {

constexpr const char* kClusterVariables[] = {"CADRE_CLUSTER_PART", "CADRE_CLUSTER_NODE",
                                             "CADRE_CLUSTER_NODES"};

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

// This node's share of the job, by the one launcher that does it.
int RunHere(const Settings& settings, const std::optional<Identity>& identity,
            const std::function<void(int)>& ended) {
  absl::StatusOr<std::optional<v1::JobSpec>> spec = SpecOf(settings, identity);
  if (!spec.ok()) return Fail(kExitBadSpec, spec.status().message());
  absl::StatusOr<RunOptions> options = ResolveRun(settings, *std::move(spec), identity);
  if (!options.ok()) return Fail(kExitUsage, options.status().message());
  // A spec that was submitted may be right, and another node have what this one lacks.
  const int lacking = options->part != 0 ? kExitUnavailable : kExitUsage;
  const absl::StatusOr<uint32_t> slots = CountSlots(
      options->job, options->workers.gpus_per_worker_own || options->workers.virtual_local_rank,
      ThisMachine());
  if (!slots.ok()) return Fail(lacking, slots.status().message());
  const absl::Status bound = CheckBinding(options->job, *slots, ThisMachine());
  if (!bound.ok()) return Fail(lacking, bound.message());
  const absl::Status here = CheckNode(*options);
  if (!here.ok()) return Fail(lacking, here.message());
  const absl::StatusOr<std::optional<log::EtcdOptions>> etcd =
      EtcdFrom(settings, absl::StrCat("/cadre/run/", options->job.name(), "/"));
  if (!etcd.ok()) return Fail(kExitUsage, etcd.status().message());
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
