#include "launcher/flags/settings.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace cadre::launcher {
namespace {

// Variables that have a flag's name but another purpose: those that workers have for the library,
// and those that Kubernetes sets in every pod for a service called "cadre" or "cadre-master".
bool IsForNoFlag(const std::map<std::string, std::string>& environment, absl::string_view variable,
                 absl::string_view value) {
  const bool workers = variable == "CADRE_TOKEN_FILE" || variable == "CADRE_GENERATION" ||
                       variable == "CADRE_ENCRYPT";
  if (workers) return environment.count("CADRE_AGENT") > 0;
  return absl::EndsWith(variable, "_PORT") && absl::StartsWith(value, "tcp://");
}

}  // namespace

Settings::Settings(Parsed parsed, std::map<std::string, std::string> environment,
                   const std::vector<Flag>& flags, std::map<std::string, Setting> file)
    : parsed_(std::move(parsed)), environment_(std::move(environment)), file_(std::move(file)) {
  for (const Flag& flag : flags) torchrun_[flag.name] = flag.torchrun;
}

std::optional<Setting> Settings::FromSurroundings(const std::string& name) const {
  const std::string suffix = absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}}));
  const auto known = torchrun_.find(name);
  const bool torchrun = known != torchrun_.end() && known->second;
  for (const char* prefix : {"CADRE_", "PET_"}) {
    if (prefix[0] == 'P' && !torchrun) continue;
    const std::string variable = absl::StrCat(prefix, suffix);
    const auto it = environment_.find(variable);
    if (it == environment_.end() || it->second.empty()) continue;
    if (!IsForNoFlag(environment_, variable, it->second)) return Setting{it->second, variable};
  }
  const auto it = file_.find(name);
  return it == file_.end() ? std::nullopt : std::optional<Setting>(it->second);
}

std::optional<Setting> Settings::Get(const std::string& name) const {
  const std::optional<std::string> given = parsed_.Get(name);
  if (given.has_value()) return Setting{*given, absl::StrCat("--", name)};
  return FromSurroundings(name);
}

std::string Settings::GetOr(const std::string& name, const std::string& fallback) const {
  const std::optional<Setting> setting = Get(name);
  return setting.has_value() ? setting->value : fallback;
}

std::vector<Setting> Settings::All(const std::string& name) const {
  std::vector<Setting> all;
  const auto it = parsed_.flags.find(name);
  if (it != parsed_.flags.end()) {
    for (const std::string& value : it->second) all.push_back({value, absl::StrCat("--", name)});
  } else if (std::optional<Setting> setting = FromSurroundings(name)) {
    all.push_back(*std::move(setting));
  }
  return all;
}

absl::StatusOr<bool> Settings::Switch(const std::string& name) const {
  const std::optional<Setting> setting = Get(name);
  if (!setting.has_value()) return false;
  const std::string word = absl::AsciiStrToLower(setting->value);
  if (word == "1" || word == "true" || word == "yes") return true;
  if (word == "0" || word == "false" || word == "no") return false;
  return absl::InvalidArgumentError(
      absl::StrCat(setting->origin, ": expected yes or no, got '", setting->value, "'"));
}

}  // namespace cadre::launcher
