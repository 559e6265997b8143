#include "launcher/flags/config_file.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "launcher/flags/nearest.h"
#include "launcher/spec/text_file.h"
#include "launcher/spec/yaml_tree.h"

namespace cadre::launcher {
namespace {

using Kind = YamlNode::Kind;

const std::vector<std::string>& Sections() {
  static const auto& sections = *new std::vector<std::string>{"server", "agent", "client"};
  return sections;
}

// Checks that `known` contains the name; the error suggests the nearest one.
absl::Status CheckName(absl::string_view file, const YamlNode& node, absl::string_view what,
                       const std::string& name, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), name) != known.end()) return absl::OkStatus();
  const std::string nearest = Nearest(name, known);
  return ErrorAt(
      file, node,
      absl::StrCat("unknown ", what, " '", name, "'; ",
                   nearest.empty() ? absl::StrCat("there are ", absl::StrJoin(known, ", "))
                                   : absl::StrCat("did you mean '", nearest, "'?")));
}

absl::Status CheckKind(absl::string_view file, const YamlNode& node, absl::string_view what,
                       Kind kind) {
  if (node.kind == kind) return absl::OkStatus();
  return ErrorAt(file, node,
                 absl::StrCat(what, ": expected ", KindName(kind), ", got ", KindName(node.kind)));
}

absl::StatusOr<std::map<std::string, Setting>> ReadSection(absl::string_view file,
                                                           const YamlNode& section,
                                                           const std::vector<Flag>& flags) {
  std::vector<std::string> known;
  for (const Flag& flag : flags) known.push_back(flag.name);
  std::map<std::string, Setting> settings;
  for (const auto& [key, value] : section.entries) {
    const std::string name = absl::StrReplaceAll(key.scalar, {{"_", "-"}});
    RETURN_IF_ERROR(CheckName(file, key, "setting", name, known));
    RETURN_IF_ERROR(CheckKind(file, value, name, Kind::kScalar));
    const std::string origin = absl::StrCat(file, ":", key.line, ":", key.column, ": ", name);
    if (!settings.emplace(name, Setting{value.scalar, origin}).second) {
      return ErrorAt(file, key, absl::StrCat("'", name, "' is given twice"));
    }
  }
  return settings;
}

}  // namespace

absl::StatusOr<std::map<std::string, Setting>> ParseConfig(absl::string_view text,
                                                           absl::string_view file,
                                                           absl::string_view section,
                                                           const std::vector<Flag>& flags) {
  ASSIGN_OR_RETURN(const YamlNode root, ParseYaml(text, file));
  std::map<std::string, Setting> settings;
  if (root.kind == Kind::kNull) return settings;
  RETURN_IF_ERROR(CheckKind(file, root, "the file", Kind::kMapping));
  std::vector<std::string> seen;
  for (const auto& [key, value] : root.entries) {
    RETURN_IF_ERROR(CheckName(file, key, "section", key.scalar, Sections()));
    if (std::find(seen.begin(), seen.end(), key.scalar) != seen.end()) {
      return ErrorAt(file, key, absl::StrCat("section '", key.scalar, "' is given twice"));
    }
    seen.push_back(key.scalar);
    // All lines of the section are comments.
    if (value.kind == Kind::kNull) continue;
    RETURN_IF_ERROR(CheckKind(file, value, key.scalar, Kind::kMapping));
    if (key.scalar != section) continue;
    ASSIGN_OR_RETURN(settings, ReadSection(file, value, flags));
  }
  return settings;
}

absl::StatusOr<std::map<std::string, Setting>> ReadConfig(const std::string& path,
                                                          absl::string_view section,
                                                          const std::vector<Flag>& flags) {
  if (path == kNoConfigFile) return std::map<std::string, Setting>();
  const std::string file = path.empty() ? kConfigFile : path;
  const absl::StatusOr<std::string> text = ReadTextFile(file, kMaxSpecBytes);
  if (path.empty() && absl::IsNotFound(text.status())) return std::map<std::string, Setting>();
  RETURN_IF_ERROR(text.status());
  return ParseConfig(*text, file, section, flags);
}

}  // namespace cadre::launcher
