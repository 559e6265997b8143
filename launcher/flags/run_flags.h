// Every flag of `cadre run`: torchrun's and ours.
#ifndef CADRE_LAUNCHER_FLAGS_RUN_FLAGS_H_
#define CADRE_LAUNCHER_FLAGS_RUN_FLAGS_H_

#include <map>
#include <string>
#include <vector>

#include "launcher/flags/command.h"

namespace cadre::launcher {

const std::vector<Flag>& RunFlags();

// torchrun's flags that change nothing here, with what to say about each.
const std::map<std::string, std::string>& FlagsWithoutMeaning();

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_FLAGS_RUN_FLAGS_H_
