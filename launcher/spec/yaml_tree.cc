#include "launcher/spec/yaml_tree.h"

#include <exception>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/exceptions.h"
#include "yaml-cpp/parser.h"

namespace cadre::launcher {
namespace {

// Thrown through yaml-cpp, which cannot be stopped otherwise; caught in ParseYaml.
struct Refused : std::exception {
  Refused(const YAML::Mark& mark, std::string message) : mark(mark), message(std::move(message)) {}
  const char* what() const noexcept override { return message.c_str(); }
  YAML::Mark mark;
  std::string message;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Refuse(mark, "", anchor);
    Add(NewNode(mark, YamlNode::Kind::kNull));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Refused(mark, "aliases (*name) are not allowed; write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Refuse(mark, tag, anchor);
    YamlNode node = NewNode(mark, YamlNode::Kind::kScalar);
    node.scalar = value;
    Add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Refuse(mark, tag, anchor);
    Open(NewNode(mark, YamlNode::Kind::kSequence), mark);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Refuse(mark, tag, anchor);
    Open(NewNode(mark, YamlNode::Kind::kMapping), mark);
  }
  void OnMapEnd() override { Close(); }

  YamlNode Take() { return std::move(root_); }

 private:
  struct Level {
    YamlNode node;
    bool has_key = false;
    YamlNode key;
  };

  static void Refuse(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != 0) throw Refused(mark, "anchors (&name) are not allowed");
    // "?" is the tag of a plain node, "!" of a quoted one.
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw Refused(mark, absl::StrCat("tags (", tag.substr(0, 64), ") are not allowed"));
    }
  }

  YamlNode NewNode(const YAML::Mark& mark, YamlNode::Kind kind) {
    if (++count_ > kMaxSpecNodes) {
      throw Refused(mark, absl::StrCat("more than ", kMaxSpecNodes, " values"));
    }
    YamlNode node;
    node.kind = kind;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    return node;
  }

  void Open(YamlNode node, const YAML::Mark& mark) {
    if (levels_.size() >= kMaxSpecDepth) {
      throw Refused(mark, absl::StrCat("nested more than ", kMaxSpecDepth, " deep"));
    }
    levels_.emplace_back();
    levels_.back().node = std::move(node);
  }

  void Close() {
    YamlNode node = std::move(levels_.back().node);
    levels_.pop_back();
    Add(std::move(node));
  }

  void Add(YamlNode node) {
    if (levels_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& level = levels_.back();
    if (level.node.kind == YamlNode::Kind::kSequence) {
      level.node.items.push_back(std::move(node));
    } else if (!level.has_key) {
      level.key = std::move(node);
      level.has_key = true;
    } else {
      level.node.entries.emplace_back(std::move(level.key), std::move(node));
      level.has_key = false;
    }
  }

  size_t count_ = 0;
  std::vector<Level> levels_;
  YamlNode root_;
};

// Refuses a second document at its first event.
class NothingMore : public TreeBuilder {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    throw Refused(mark, "the file has a second document; expected only one");
  }
};

// yaml-cpp would insert replacement characters, so that a program would get an argument that the
// user did not write.
absl::Status CheckUtf8(absl::string_view text, absl::string_view file) {
  YamlNode place;
  while (!text.empty()) {
    const size_t size = Utf8CharacterSize(text);
    if (size == 0) return ErrorAt(file, place, "not UTF-8; save the file as UTF-8 text");
    ++place.column;
    if (text[0] == '\n') {
      ++place.line;
      place.column = 1;
    }
    text.remove_prefix(size);
  }
  return absl::OkStatus();
}

absl::Status ErrorAtMark(absl::string_view file, const YAML::Mark& mark,
                         absl::string_view message) {
  YamlNode place;
  place.line = mark.line + 1;
  place.column = mark.column + 1;
  return ErrorAt(file, place, message);
}

}  // namespace

const char* KindName(YamlNode::Kind kind) {
  switch (kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kScalar:
      return "text";
    case YamlNode::Kind::kSequence:
      return "a list";
    case YamlNode::Kind::kMapping:
      return "a mapping";
  }
  return "nothing";
}

absl::Status ErrorAt(absl::string_view file, const YamlNode& node, absl::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat(file, ":", node.line, ":", node.column, ": ", EscapeControl(message)));
}

absl::StatusOr<YamlNode> ParseYaml(absl::string_view text, absl::string_view file) {
  if (text.size() > kMaxSpecBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        file, ": it has ", text.size(), " bytes; at most ", kMaxSpecBytes, " are allowed"));
  }
  RETURN_IF_ERROR(CheckUtf8(text, file));
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    TreeBuilder builder;
    parser.HandleNextDocument(builder);
    NothingMore nothing_more;
    parser.HandleNextDocument(nothing_more);
    return builder.Take();
  } catch (const Refused& refused) {
    return ErrorAtMark(file, refused.mark, refused.message);
  } catch (const YAML::Exception& error) {
    return ErrorAtMark(file, error.mark, error.msg);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", EscapeControl(error.what())));
  }
}

}  // namespace cadre::launcher
