// The machine's configuration file for cadre's commands, in YAML: a section for each of
// "server", "agent" and "client" (all commands that ask a server), in it flags by their long name,
// with dashes or underscores.
//
//   server: {host: 0.0.0.0, token-file: /etc/cadre/token}
//   client: {server: "head:29400"}
#ifndef CADRE_LAUNCHER_FLAGS_CONFIG_FILE_H_
#define CADRE_LAUNCHER_FLAGS_CONFIG_FILE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/flags/command.h"
#include "launcher/flags/settings.h"

namespace cadre::launcher {

inline constexpr char kConfigFile[] = "/etc/cadre/cadre.yaml";
// In place of a path: none is read.
inline constexpr char kNoConfigFile[] = "none";

// One section's settings by flag. Pure. INVALID_ARGUMENT: "FILE:LINE:COLUMN: what", also for what
// is wrong with the sections' names; the other sections' content is not looked at.
absl::StatusOr<std::map<std::string, Setting>> ParseConfig(absl::string_view text,
                                                           absl::string_view file,
                                                           absl::string_view section,
                                                           const std::vector<Flag>& flags);

// Of `path`; "": of kConfigFile, where there is one. NOT_FOUND and PERMISSION_DENIED name the file.
absl::StatusOr<std::map<std::string, Setting>> ReadConfig(const std::string& path,
                                                          absl::string_view section,
                                                          const std::vector<Flag>& flags);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_FLAGS_CONFIG_FILE_H_
