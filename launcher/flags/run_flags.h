// Every flag of `cadre run`: torchrun's, Cadre's, and those of earlier versions that --set
// replaces.
#ifndef CADRE_LAUNCHER_FLAGS_RUN_FLAGS_H_
#define CADRE_LAUNCHER_FLAGS_RUN_FLAGS_H_

#include <map>
#include <string>
#include <vector>

#include "launcher/flags/command.h"

namespace cadre::launcher {

// The version in which flags that --set replaces are no longer accepted.
inline constexpr char kOldFlagsEnd[] = "0.5";

const std::vector<Flag>& RunFlags();

// The properties of a job that --set takes, as Command::properties.
std::vector<Flag> RunProperties();

// What is written in place of an old flag: "timeouts.progress=10m" for "progress-timeout" with
// "10m". A switch has the value "1". The flag must be an old one.
std::string AsSet(const std::string& flag, const std::string& value);

// torchrun's flags that have no effect here, with a notice for each.
const std::map<std::string, std::string>& FlagsWithoutMeaning();

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_FLAGS_RUN_FLAGS_H_
