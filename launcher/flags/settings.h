// A flag's value, from the first of: command line, CADRE_<NAME>, PET_<NAME>, this machine's
// configuration file. Pure.
#ifndef CADRE_LAUNCHER_FLAGS_SETTINGS_H_
#define CADRE_LAUNCHER_FLAGS_SETTINGS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/flags/command.h"

namespace cadre::launcher {

struct Setting {
  std::string value;
  // "--nnodes", "CADRE_NNODES" or "/etc/cadre/cadre.yaml:3:9: port": the beginning of errors about
  // the value.
  std::string origin;
};

class Settings {
 public:
  // `file`: the configuration file's settings, by flag.
  Settings(Parsed parsed, std::map<std::string, std::string> environment,
           const std::vector<Flag>& flags, std::map<std::string, Setting> file = {});

  // Empty CADRE_ and PET_ variables count as unset, and so do variables that are not meant as
  // flags: CADRE_TOKEN_FILE, CADRE_GENERATION and CADRE_ENCRYPT inside a worker, and Kubernetes'
  // CADRE_PORT=tcp://....
  std::optional<Setting> Get(const std::string& name) const;
  std::string GetOr(const std::string& name, const std::string& fallback) const;
  // Every value of a repeated flag; a variable holds only one.
  std::vector<Setting> All(const std::string& name) const;
  // A switch: present, or its variable is 1, true or yes. INVALID_ARGUMENT for other words.
  absl::StatusOr<bool> Switch(const std::string& name) const;

  const std::vector<std::string>& rest() const { return parsed_.rest; }
  const std::map<std::string, std::string>& environment() const { return environment_; }

  // The value of a variable or of the configuration file, whether or not the command line has one.
  std::optional<Setting> FromSurroundings(const std::string& name) const;

 private:
  Parsed parsed_;
  std::map<std::string, std::string> environment_;
  std::map<std::string, Setting> file_;
  // Flags that PET_<NAME> sets too.
  std::map<std::string, bool> torchrun_;
};

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_FLAGS_SETTINGS_H_
