// The machines of a cluster: cadre agent, which adds this one; cadre nodes, drain and undrain.
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/cluster/allocation_launcher.h"
#include "agent/cluster/allocations_directory.h"
#include "agent/cluster/cluster_agent.h"
#include "agent/cluster/gpu_devices.h"
#include "agent/cluster/node_memory.h"
#include "agent/link/grpc_link.h"
#include "agent/supervisor/client.h"
#include "agent/supervisor/processes/cgroup_limits.h"
#include "agent/workers/node_hardware.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/tokens/renewed_token.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/run_checks.h"
#include "launcher/display/output_format.h"
#include "launcher/display/output_writer.h"
#include "launcher/display/status_text.h"
#include "launcher/environment/slots.h"
#include "launcher/flags/flag_values.h"
#include "launcher/spec/scalars.h"
#include "rpc/node_memory.h"

namespace cadre::launcher {
namespace {

std::vector<Flag> AgentFlags() {
  std::vector<Flag> flags = ControlFlags();
  const std::vector<Flag> own = {
      {"node-name", "NAME", "Name of this node in the cluster [the host's name]."},
      {"cpus", "N", "CPUs to give to jobs [the cores this process may use]."},
      {"gpus", "N", "GPUs to give to jobs, whole ones [those in CUDA_VISIBLE_DEVICES, or all]."},
      {"memory", "SIZE",
       "Memory to give to jobs, such as 64GiB [the machine's, or that of the agent's cgroup]."},
      {"user", "NAME",
       "Run only this user's jobs [as root: any user's except root's; otherwise: your own]."},
      {"local-addr", "ADDRESS",
       "Address at which other nodes reach this node's workers [that of the route to the "
       "server]."}};
  flags.insert(flags.end(), own.begin(), own.end());
  Flag label = {"label", "NAME=VALUE", "For spread_over and pack: switch=s1, rack=7. Repeatable."};
  label.repeated = true;
  flags.push_back(std::move(label));
  return flags;
}

absl::StatusOr<uint32_t> CountFrom(const Setting& given) {
  const absl::StatusOr<uint32_t> count = ParseCount(given.value);
  if (count.ok()) return count;
  return absl::InvalidArgumentError(
      absl::StrCat(given.origin, ": expected a number, got '", given.value, "'"));
}

absl::Status ReadResources(const Settings& settings, agent::ClusterAgentOptions* options) {
  uint32_t cpus = 0;
  if (const auto given = settings.Get("cpus")) {
    ASSIGN_OR_RETURN(cpus, CountFrom(*given));
    if (cpus == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(given->origin, ": a node has 1 CPU or more; got 0"));
    }
  } else {
    ASSIGN_OR_RETURN(cpus, ThisMachine().cores());
  }
  std::optional<uint32_t> wanted;
  if (const auto given = settings.Get("gpus")) {
    ASSIGN_OR_RETURN(wanted, CountFrom(*given));
  }
  uint64_t memory = 0;
  if (const auto given = settings.Get("memory")) {
    const absl::StatusOr<uint64_t> size = ParseSize(given->value);
    if (!size.ok()) return Named(*given, size.status());
    if (*size == 0 || *size > rpc::kMaxNodeMemory) {
      return absl::InvalidArgumentError(
          absl::StrCat(given->origin, ": a node has more than 0 and at most ",
                       SizeText(rpc::kMaxNodeMemory), " of memory; got ", given->value));
    }
    memory = *size;
  } else {
    memory = agent::FindNodeMemory();
  }
  const agent::GpuList found = agent::FindGpus();
  options->start.gpus = agent::GpusToGive(found.gpus, wanted);
  for (const auto& [index, gpu] : options->start.gpus) options->gpus.push_back(index);
  options->node.set_cpus(cpus);
  options->node.set_gpus(static_cast<uint32_t>(options->gpus.size()));
  options->node.set_memory(memory);
  options->start.has_gpus = !options->gpus.empty() || !found.gpus.empty();
  for (const Setting& label : settings.All("label")) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(label.value, absl::MaxSplits('=', 1));
    if (parts.first.empty() || parts.second.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(label.origin, ": expected NAME=VALUE, got '", label.value, "'"));
    }
    (*options->node.mutable_labels())[parts.first] = parts.second;
  }
  return absl::OkStatus();
}

// The user whose jobs run here; empty: any user's.
absl::StatusOr<std::string> UserOf(const Settings& settings) {
  ASSIGN_OR_RETURN(const agent::UserEntry own, agent::ThisUser());
  const std::string given = settings.GetOr("user", "");
  if (given.empty()) return geteuid() == 0 ? std::string() : own.name;
  if (given != own.name && geteuid() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--user ", given,
                     ": this agent does not run as root, so it can run jobs only of ", own.name));
  }
  const absl::StatusOr<agent::UserEntry> user = agent::FindUser(given);
  if (user.ok()) return given;
  return absl::InvalidArgumentError(absl::StrCat("--user: ", user.status().message()));
}

absl::StatusOr<agent::ClusterAgentOptions> Read(const Settings& settings) {
  agent::ClusterAgentOptions options;
  options.node.set_node(settings.GetOr("node-name", HostName()));
  RETURN_IF_ERROR(ReadResources(settings, &options));
  ASSIGN_OR_RETURN(const std::string user, UserOf(settings));
  options.node.set_user(user);
  options.start.root_too = user == "root";
  std::error_code error;
  options.start.launcher = std::filesystem::read_symlink("/proc/self/exe", error).string();
  options.start.tls_dir = settings.GetOr("tls-dir", "");
  if (!options.start.tls_dir.empty()) {
    options.start.tls_dir = std::filesystem::absolute(options.start.tls_dir, error).string();
    if (error) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tls-dir: cannot find the current directory: ", error.message(),
                       "; change to another one"));
    }
  }
  RETURN_IF_ERROR(Take(settings, "local-addr", ParseAddress,
                       [&](std::string address) { options.start.local_addr = address; }));
  options.start.environment = settings.environment();
  absl::BitGen random;
  options.incarnation = absl::Uniform<uint64_t>(absl::IntervalClosed, random, 1, UINT64_MAX);
  return options;
}

void WarnUncontained(const std::function<void(const std::string&)>& log) {
  const supervisor::UnsupportedLimits found = supervisor::FindUnsupportedLimits();
  const std::pair<const char*, std::string> all[] = {
      {"memory", found.memory}, {"processes", found.pids}, {"GPUs", found.devices}};
  for (const auto& [what, why_not] : all) {
    if (why_not.empty()) continue;
    log(absl::StrCat("the ", what, " of jobs cannot be limited: ", why_not));
  }
}

int RunAgent(const Parsed& parsed) {
  const absl::StatusOr<Settings> settings =
      MachineSettings(parsed, AgentFlags(), "agent", AgentFlags());
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  absl::StatusOr<agent::ClusterAgentOptions> options = Read(*settings);
  if (!options.ok()) return Fail(kExitUsage, options.status().message());
  const absl::Status descriptors = CheckDescriptors();
  if (!descriptors.ok()) return Fail(kExitUnavailable, descriptors.message());
  // Before gRPC, because a process that forks must not have gRPC's threads.
  absl::StatusOr<std::unique_ptr<supervisor::Client>> supervisor = supervisor::Client::Start();
  if (!supervisor.ok()) {
    // A wrong CADRE_SUPERVISOR is a usage error, like a wrong flag.
    const bool lacks = absl::IsResourceExhausted(supervisor.status());
    return Fail(lacks ? kExitUnavailable : kExitUsage, supervisor.status().message());
  }
  const absl::StatusOr<ServerAddresses> servers = FindServers(*settings);
  if (!servers.ok()) return Fail(ControlExit(servers.status()), servers.status().message());
  const auto directory = agent::AllocationsDirectory::Make();
  if (!directory.ok()) return Fail(kExitInternal, directory.status().message());
  options->start.directory = (*directory)->path();
  options->start.server = absl::StrJoin(servers->names, ",");
  options->start.token = std::make_shared<RenewedToken>(servers->token.token, servers->token.file);
  // A launcher's token names a key, if there is one, whether this server uses it or not.
  options->start.insecure = !servers->security.by_token && servers->security.tls_dir.empty();
  agent::GrpcLinkOptions link_options;
  link_options.endpoints = servers->addresses;
  link_options.token = servers->token.token;
  link_options.token_file = servers->token.file;
  link_options.security = servers->security;
  // The agent reconnects after a refusal, because its launchers continue meanwhile and would end
  // with it.
  link_options.returns_after_refusal = true;
  OutputWriter writer;
  options->log = [&writer](const std::string& line) {
    writer.Write(2, absl::StrCat(absl::FormatTime("%Y-%m-%d %H:%M:%E3S ", absl::Now(),
                                                  absl::LocalTimeZone()),
                                 EscapeControl(line), "\n"));
  };
  if (servers->insecure) options->log(kInsecureNotice);
  if (geteuid() == 0) WarnUncontained(options->log);
  const std::unique_ptr<agent::ServerLink> link = agent::MakeGrpcLink(std::move(link_options));
  agent::CredentialRenewal renewal(options->start, options->log);
  renewal.Start();
  const absl::Status status = agent::RunClusterAgent(*options, *std::move(supervisor), *link);
  writer.Flush(absl::Seconds(2));
  if (status.ok()) return 0;
  return Fail(absl::IsInternal(status) ? kExitInternal : kExitUnavailable, status.message());
}

}  // namespace

Command ClusterAgentCommand() {
  Command command;
  command.name = "agent";
  command.summary = "Give this machine to a cluster until SIGINT or SIGTERM.";
  command.flags = AgentFlags();
  command.run = RunAgent;
  return command;
}

// cadre nodes, drain, undrain: the machines of a cluster.

namespace {

std::vector<Flag> NodesFlags() {
  std::vector<Flag> flags = ControlFlags();
  flags.push_back(OutputFlag());
  return flags;
}

std::vector<Flag> DrainFlags() {
  std::vector<Flag> flags = NodesFlags();
  flags.push_back({"reason", "TEXT", "The reason that 'cadre nodes' shows."});
  return flags;
}

int Show(bool json, const absl::StatusOr<v1::ListNodesReply>& nodes) {
  if (!nodes.ok()) return Fail(ControlExit(nodes.status()), nodes.status().message());
  return Print(json ? JsonText(*nodes) + "\n" : ClusterNodesTable(*nodes));
}

int RunNodeCommand(const Parsed& parsed, const std::vector<Flag>& flags, const std::string& node,
                   bool drained) {
  const absl::StatusOr<Settings> settings = ClientSettings(parsed, flags);
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  const absl::StatusOr<bool> json = AsksForJson(settings->GetOr("output", "plain"));
  if (!json.ok()) return Fail(kExitUsage, json.status().message());
  const auto client = ControlClient::Connect(*settings);
  if (!client.ok()) return Fail(ControlExit(client.status()), client.status().message());
  if (node.empty()) return Show(*json, (*client)->Nodes());
  return Show(*json, (*client)->Drain(node, drained, settings->GetOr("reason", "")));
}

int RunNodes(const Parsed& parsed) { return RunNodeCommand(parsed, NodesFlags(), "", false); }
int RunDrain(const Parsed& parsed) {
  return RunNodeCommand(parsed, DrainFlags(), parsed.rest[0], true);
}
int RunUndrain(const Parsed& parsed) {
  return RunNodeCommand(parsed, NodesFlags(), parsed.rest[0], false);
}

}  // namespace

Command NodesCommand() {
  Command command;
  command.name = "nodes";
  command.summary = "Show a cluster's nodes and what they run.";
  command.flags = NodesFlags();
  command.run = RunNodes;
  return command;
}

Command DrainCommand() {
  Command command;
  command.name = "drain";
  command.summary = "Give a node no new work; its jobs continue.";
  command.positionals = "NODE";
  command.min_positionals = command.max_positionals = 1;
  command.flags = DrainFlags();
  command.run = RunDrain;
  return command;
}

Command UndrainCommand() {
  Command command;
  command.name = "undrain";
  command.summary = "Give a drained node work again.";
  command.positionals = "NODE";
  command.min_positionals = command.max_positionals = 1;
  command.flags = NodesFlags();
  command.run = RunUndrain;
  return command;
}

}  // namespace cadre::launcher
