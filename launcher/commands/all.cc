#include "launcher/commands/commands.h"

namespace cadre::launcher {

const std::vector<Command>& AllCommands() {
  static const auto* const commands = new std::vector<Command>{
      RunCommand(),   ServerCommand(), ClusterAgentCommand(), SubmitCommand(),   StatusCommand(),
      WhyCommand(),   LogsCommand(),   StacksCommand(),       TimelineCommand(), CancelCommand(),
      NodesCommand(), DrainCommand(),  UndrainCommand(),      TokenCommand(),    ValidateCommand(),
      SlurmCommand(), DoctorCommand(), CompletionCommand(),   ManCommand(),      VersionCommand()};
  return *commands;
}

}  // namespace cadre::launcher
