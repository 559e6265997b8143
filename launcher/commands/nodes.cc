// cadre nodes, drain, undrain: the machines of a cluster.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/display/cluster_text.h"
#include "launcher/display/json_text.h"

namespace cadre::launcher {
namespace {

std::vector<Flag> Flags() {
  std::vector<Flag> flags = ControlFlags();
  flags.push_back(OutputFlag());
  return flags;
}

std::vector<Flag> DrainFlags() {
  std::vector<Flag> flags = Flags();
  flags.push_back({"reason", "TEXT", "What 'cadre nodes' says about it."});
  return flags;
}

int Show(bool json, const absl::StatusOr<v1::ListNodesReply>& nodes) {
  if (!nodes.ok()) return Fail(ControlExit(nodes.status()), nodes.status().message());
  return Print(json ? JsonText(*nodes) + "\n" : ClusterNodesTable(*nodes));
}

int Ask(const Parsed& parsed, const std::vector<Flag>& flags, const std::string& node,
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

}  // namespace cadre::launcher
