#include <algorithm>
#include <iterator>

#include "launcher/commands/commands.h"

namespace cadre::launcher {
namespace {

// By name, so that a call makes no more than the command that it calls.
struct Entry {
  const char* name;
  Command (*make)();
};

constexpr Entry kCommands[] = {
    {"run", RunCommand},
    {"server", ServerCommand},
    {"agent", ClusterAgentCommand},
    {"submit", SubmitCommand},
    {"status", StatusCommand},
    {"why", WhyCommand},
    {"logs", LogsCommand},
    {"stacks", StacksCommand},
    {"timeline", TimelineCommand},
    {"dashboard", DashboardCommand},
    {"cancel", CancelCommand},
    {"nodes", NodesCommand},
    {"drain", DrainCommand},
    {"undrain", UndrainCommand},
    {"token", TokenCommand},
    {"validate", ValidateCommand},
    {"slurm", SlurmCommand},
    {"doctor", DoctorCommand},
    {"completion", CompletionCommand},
    {"man", ManCommand},
    {"version", VersionCommand},
};

}  // namespace

const std::vector<Command>& AllCommands() {
  static const auto* const commands = [] {
    auto* const all = new std::vector<Command>;
    for (const Entry& entry : kCommands) all->push_back(entry.make());
    return all;
  }();
  return *commands;
}

std::optional<Command> FindCommand(absl::string_view name) {
  const auto* const found = std::find_if(std::begin(kCommands), std::end(kCommands),
                                         [name](const Entry& entry) { return entry.name == name; });
  if (found == std::end(kCommands)) return std::nullopt;
  return found->make();
}

}  // namespace cadre::launcher
