#include "launcher/commands/commands.h"

namespace cadre {

const std::vector<Command>& AllCommands() {
  static const auto* const commands = new std::vector<Command>{
      RunCommand(),        ServerCommand(), StatusCommand(),   WhyCommand(),   TimelineCommand(),
      CancelCommand(),     TokenCommand(),  ValidateCommand(), SlurmCommand(), DoctorCommand(),
      CompletionCommand(), ManCommand(),    VersionCommand()};
  return *commands;
}

}  // namespace cadre
