// Parses YAML into a small tree in which every node has its line and column; limits are checked
// before anything is built. Pure.
#ifndef CADRE_LAUNCHER_SPEC_YAML_TREE_H_
#define CADRE_LAUNCHER_SPEC_YAML_TREE_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre::launcher {

inline constexpr size_t kMaxSpecBytes = 1 << 20;
inline constexpr int kMaxSpecDepth = 16;
inline constexpr size_t kMaxSpecNodes = 10000;

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMapping };
  Kind kind = Kind::kNull;
  // Counted from 1.
  int line = 1;
  int column = 1;
  std::string scalar;
  std::vector<YamlNode> items;                         // kSequence
  std::vector<std::pair<YamlNode, YamlNode>> entries;  // kMapping, duplicates included
};

// "a mapping", "a list", "text", "nothing".
const char* KindName(YamlNode::Kind kind);

// INVALID_ARGUMENT: "FILE:LINE:COLUMN: what". Refuses several documents, anchors, aliases, tags,
// and input over the limits above.
absl::StatusOr<YamlNode> ParseYaml(absl::string_view text, absl::string_view file);

// "FILE:LINE:COLUMN: message"
absl::Status ErrorAt(absl::string_view file, const YamlNode& node, absl::string_view message);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SPEC_YAML_TREE_H_
