// The links under which this program is Slurm's commands.
#ifndef CADRE_LAUNCHER_COMMANDS_SLURM_LINKS_H_
#define CADRE_LAUNCHER_COMMANDS_SLURM_LINKS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace cadre::launcher {

// Makes symbolic links with these names to `program` in the directory, which it makes if there is
// none. Links to a program of the same name, of an earlier installation, are replaced.
// ALREADY_EXISTS: something else has one of the names; then nothing was changed.
absl::Status MakeLinks(const std::string& program, const std::vector<std::string>& names,
                       const std::string& directory);

// How a shell finds the links: `search` is the value of PATH. Empty if it finds them already.
std::string PathAdvice(const std::string& directory, const std::string& search);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_SLURM_LINKS_H_
