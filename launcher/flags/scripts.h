// Completion scripts and the manual page, made from the tables of flags. Pure.
#ifndef CADRE_LAUNCHER_FLAGS_SCRIPTS_H_
#define CADRE_LAUNCHER_FLAGS_SCRIPTS_H_

#include <string>
#include <vector>

#include "launcher/flags/command.h"

namespace cadre::launcher {

std::string BashCompletion(const std::vector<Command>& commands);
std::string ZshCompletion(const std::vector<Command>& commands);
std::string FishCompletion(const std::vector<Command>& commands);

// roff, section 1.
std::string ManualPage(const std::vector<Command>& commands);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_FLAGS_SCRIPTS_H_
