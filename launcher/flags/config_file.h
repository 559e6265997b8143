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
// The value of a path that means no file.
inline constexpr char kNoConfigFile[] = "none";

// One section's settings by flag. Pure. INVALID_ARGUMENT: "FILE:LINE:COLUMN: what", also for errors
// in the sections' names; the content of other sections is not checked.
absl::StatusOr<std::map<std::string, Setting>> ParseConfig(absl::string_view text,
                                                           absl::string_view file,
                                                           absl::string_view section,
                                                           const std::vector<Flag>& flags);

// Reads `path`; "" means kConfigFile, if it exists. NOT_FOUND and PERMISSION_DENIED name the file.
absl::StatusOr<std::map<std::string, Setting>> ReadConfig(const std::string& path,
                                                          absl::string_view section,
                                                          const std::vector<Flag>& flags);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_FLAGS_CONFIG_FILE_H_
