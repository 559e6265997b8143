// cadre nodes, drain, undrain: the machines of a cluster.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/control_client.h"
#include "launcher/display/json_text.h"
#include "launcher/display/table.h"

namespace cadre {
namespace {

std::vector<Flag> Flags() {
  std::vector<Flag> flags = ControlFlags();
  flags.push_back({"output", "plain|json", "Form of what is printed [plain]."});
  return flags;
}

std::vector<Flag> DrainFlags() {
  std::vector<Flag> flags = Flags();
  flags.push_back({"reason", "TEXT", "What 'cadre nodes' says about it."});
  return flags;
}

std::string StateOf(const v1::ClusterNodeStatus& node) {
  std::string state = node.connected() ? "up" : "away";
  if (node.drained()) {
    absl::StrAppend(&state, ", drained",
                    node.drain_reason().empty() ? "" : absl::StrCat(": ", node.drain_reason()));
  }
  return state;
}

std::string NodesText(const v1::ListNodesReply& reply) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::ClusterNodeStatus& node : reply.nodes()) {
    uint32_t cpus = 0, gpus = 0;
    std::vector<std::string> jobs, labels;
    for (const v1::Part& part : node.parts()) {
      cpus += part.cpus();
      gpus += part.gpus();
      jobs.push_back(part.job());
    }
    for (const auto& [name, value] : node.labels()) labels.push_back(name + "=" + value);
    std::sort(labels.begin(), labels.end());
    rows.push_back({node.name(), StateOf(node), absl::StrCat(cpus, "/", node.cpus()),
                    absl::StrCat(gpus, "/", node.gpus()), node.user().empty() ? "any" : node.user(),
                    labels.empty() ? "-" : absl::StrJoin(labels, ","),
                    jobs.empty() ? "-" : absl::StrJoin(jobs, " ")});
  }
  return FormatTable({"NODE", "STATE", "CPUS", "GPUS", "USERS", "LABELS", "JOBS"}, rows);
}

int Show(const Settings& settings, const absl::StatusOr<v1::ListNodesReply>& nodes) {
  if (!nodes.ok()) return Fail(ControlExit(nodes.status()), nodes.status().message());
  return Print(settings.GetOr("output", "plain") == "json" ? JsonText(*nodes) + "\n"
                                                           : NodesText(*nodes));
}

int Ask(const Parsed& parsed, const std::vector<Flag>& flags, const std::string& node,
        bool drained) {
  const absl::StatusOr<Settings> settings = ClientSettings(parsed, flags);
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  const std::string form = settings->GetOr("output", "plain");
  if (form != "plain" && form != "json") {
    return Fail(kExitUsage, absl::StrCat("--output: expected plain or json, got '", form, "'"));
  }
  const auto client = ControlClient::Connect(*settings);
  if (!client.ok()) return Fail(ControlExit(client.status()), client.status().message());
  if (node.empty()) return Show(*settings, (*client)->Nodes());
  return Show(*settings, (*client)->Drain(node, drained, settings->GetOr("reason", "")));
}

int RunNodes(const Parsed& parsed) { return Ask(parsed, Flags(), "", false); }
int RunDrain(const Parsed& parsed) { return Ask(parsed, DrainFlags(), parsed.rest[0], true); }
int RunUndrain(const Parsed& parsed) { return Ask(parsed, Flags(), parsed.rest[0], false); }

}  // namespace

Command NodesCommand() {
  Command command;
  command.name = "nodes";
  command.summary = "Show a cluster's nodes and what they run.";
  command.flags = Flags();
  command.run = RunNodes;
  return command;
}

Command DrainCommand() {
  Command command;
  command.name = "drain";
  command.summary = "Give a node no new work; what it runs goes on.";
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
  command.flags = Flags();
  command.run = RunUndrain;
  return command;
}

}  // namespace cadre
