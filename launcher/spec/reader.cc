#include "launcher/spec/reader.h"

#include <algorithm>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/duration.h"
#include "base/status_macros.h"
#include "launcher/flags/nearest.h"
#include "launcher/spec/scalars.h"
#include "launcher/spec/text_file.h"
#include "launcher/spec/yaml_tree.h"

namespace cadre::launcher {
namespace {

// Of one document; more are of one kind.
constexpr size_t kMaxErrors = 20;

// One key of a mapping. Its reader gets a value of the kind it names; its error is completed with
// the value's line and column.
struct Key {
  const char* name;
  YamlNode::Kind kind;
  absl::Status (*read)(const YamlNode& value, v1::JobSpec& spec);
  // For kMapping, in place of `read`: the keys below it. Empty: any keys.
  const std::vector<Key>* (*below)() = nullptr;
};

constexpr YamlNode::Kind kText = YamlNode::Kind::kScalar;
constexpr YamlNode::Kind kList = YamlNode::Kind::kSequence;
constexpr YamlNode::Kind kMap = YamlNode::Kind::kMapping;

absl::Status NoNul(absl::string_view text) {
  if (text.find('\0') == absl::string_view::npos) return absl::OkStatus();
  return absl::InvalidArgumentError("a NUL character cannot be passed to a program");
}

// Reads a scalar with `parse` and stores it with `store`.
#define CADRE_SCALAR(parse, store)                               \
  [](const YamlNode& value, v1::JobSpec& spec) -> absl::Status { \
    (void)spec;                                                  \
    ASSIGN_OR_RETURN(const auto parsed, parse(value.scalar));    \
    store;                                                       \
    return absl::OkStatus();                                     \
  }
#define CADRE_TEXT(store)                                        \
  [](const YamlNode& value, v1::JobSpec& spec) -> absl::Status { \
    RETURN_IF_ERROR(NoNul(value.scalar));                        \
    store;                                                       \
    return absl::OkStatus();                                     \
  }
// Reads each item of a list with `parse`, whose result `store` keeps.
#define CADRE_LIST(parse, store)                                 \
  [](const YamlNode& value, v1::JobSpec& spec) -> absl::Status { \
    for (const YamlNode& item : value.items) {                   \
      ASSIGN_OR_RETURN(const auto parsed, parse(item.scalar));   \
      store;                                                     \
    }                                                            \
    return absl::OkStatus();                                     \
  }

absl::StatusOr<std::string> ParseBind(const std::string& text) {
  if (text == "none" || text == "core" || text == "numa" || text == "gpu") return text;
  return absl::InvalidArgumentError(
      absl::StrCat("expected none, core, numa or gpu, got '", text, "'"));
}

absl::StatusOr<int32_t> ParsePriority(const std::string& text) {
  const bool negative = absl::StartsWith(text, "-");
  const absl::StatusOr<uint32_t> size = ParseCount(absl::string_view(text).substr(negative));
  if (!size.ok() || *size > 1000000) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a number from -1000000 to 1000000, got '", text, "'"));
  }
  return negative ? -static_cast<int32_t>(*size) : static_cast<int32_t>(*size);
}

absl::StatusOr<uint32_t> ParseUnit(const std::string& text) {
  const absl::StatusOr<uint32_t> unit = ParseCount(text);
  if (!unit.ok() || *unit > 0) return unit;
  return absl::InvalidArgumentError("expected a number of nodes from 1, got '0'");
}

const std::vector<Key>* ResourceKeys() {
  static const std::vector<Key>* const keys = new std::vector<Key>{
      {"gpus_per_worker", kText,
       CADRE_SCALAR(ParseCount, spec.mutable_resources()->set_gpus_per_worker(parsed))},
      {"cpus_per_worker", kText,
       CADRE_SCALAR(ParseCount, spec.mutable_resources()->set_cpus_per_worker(parsed))},
      {"memory_per_worker", kText,
       CADRE_SCALAR(ParseSize, spec.mutable_resources()->set_memory_per_worker(parsed))},
  };
  return keys;
}

const std::vector<Key>* PlacementKeys() {
  static const std::vector<Key>* const keys = new std::vector<Key>{
      {"bind", kText, CADRE_SCALAR(ParseBind, spec.mutable_placement()->set_bind(parsed))},
      {"spread_over", kText, CADRE_TEXT(spec.mutable_placement()->set_spread_over(value.scalar))},
      {"pack", kText, CADRE_TEXT(spec.mutable_placement()->set_pack(value.scalar))},
  };
  return keys;
}

const std::vector<Key>* RendezvousKeys() {
  static const std::vector<Key>* const keys = new std::vector<Key>{
      {"join_timeout", kText,
       CADRE_SCALAR(ParseDuration,
                    *spec.mutable_rendezvous()->mutable_join_timeout() = ToProto(parsed))},
      {"settle", kText,
       CADRE_SCALAR(ParseDuration, *spec.mutable_rendezvous()->mutable_settle() = ToProto(parsed))},
  };
  return keys;
}

const std::vector<Key>* TimeoutKeys() {
  static const std::vector<Key>* const keys = new std::vector<Key>{
      {"start", kText,
       CADRE_SCALAR(ParseDuration, *spec.mutable_timeouts()->mutable_start() = ToProto(parsed))},
      {"progress", kText,
       CADRE_SCALAR(ParseDuration, *spec.mutable_timeouts()->mutable_progress() = ToProto(parsed))},
      {"silence", kText,
       CADRE_SCALAR(ParseDuration, *spec.mutable_timeouts()->mutable_silence() = ToProto(parsed))},
      {"stop_grace", kText,
       CADRE_SCALAR(ParseDuration,
                    *spec.mutable_timeouts()->mutable_stop_grace() = ToProto(parsed))},
      {"total", kText,
       CADRE_SCALAR(ParseDuration, *spec.mutable_timeouts()->mutable_total() = ToProto(parsed))},
  };
  return keys;
}

const std::vector<Key>* RestartKeys() {
  static const std::vector<Key>* const keys = new std::vector<Key>{
      {"max", kText, CADRE_SCALAR(ParseCount, spec.mutable_restart()->set_max(parsed))},
      {"window", kText,
       CADRE_SCALAR(ParseDuration, *spec.mutable_restart()->mutable_window() = ToProto(parsed))},
      {"backoff", kText,
       CADRE_SCALAR(ParseDurationRange,
                    *spec.mutable_restart()->mutable_backoff_min() = ToProto(parsed.first);
                    *spec.mutable_restart()->mutable_backoff_max() = ToProto(parsed.second))},
      {"on", kList, CADRE_LIST(ParseFailureCause, spec.mutable_restart()->add_on(parsed))},
      {"never_exit_codes", kList,
       CADRE_LIST(ParseExitCode, spec.mutable_restart()->add_never_exit_codes(parsed))},
      {"in_place", kText, CADRE_SCALAR(ParseBoolean, spec.mutable_restart()->set_in_place(parsed))},
      {"standby", kText, CADRE_SCALAR(ParseBoolean, spec.mutable_restart()->set_standby(parsed))},
      {"warm", kText, CADRE_SCALAR(ParseBoolean, spec.mutable_restart()->set_warm(parsed))},
      {"preload", kList, CADRE_LIST(ParseModuleName, spec.mutable_restart()->add_preload(parsed))},
  };
  return keys;
}

const std::vector<Key>* ElasticKeys() {
  static const std::vector<Key>* const keys = new std::vector<Key>{
      {"scale_up", kText, CADRE_SCALAR(ParseScaleUp, spec.mutable_elastic()->set_scale_up(parsed))},
      {"unit", kText, CADRE_SCALAR(ParseUnit, spec.mutable_elastic()->set_unit(parsed))},
      {"checkpoint_signal", kText,
       CADRE_SCALAR(ParseSignal, spec.mutable_elastic()->set_checkpoint_signal(parsed))},
  };
  return keys;
}

const std::vector<Key>* LogKeys() {
  static const std::vector<Key>* const keys = new std::vector<Key>{
      {"dir", kText, CADRE_TEXT(spec.mutable_logs()->set_dir(value.scalar))},
      {"tee", kList, CADRE_LIST(ParseCount, spec.mutable_logs()->add_tee(parsed))},
  };
  return keys;
}

const std::vector<Key>* SlurmKeys() {
  static const std::vector<Key>* const keys = new std::vector<Key>{
      {"partition", kText,
       CADRE_SCALAR(ParseSlurmName, spec.mutable_slurm()->set_partition(parsed))},
      {"account", kText, CADRE_SCALAR(ParseSlurmName, spec.mutable_slurm()->set_account(parsed))},
      {"extra", kList, CADRE_LIST(ParseSbatchOption, spec.mutable_slurm()->add_extra(parsed))},
  };
  return keys;
}

absl::Status ReadEnv(const YamlNode& value, v1::JobSpec& spec) {
  for (const auto& [name, content] : value.entries) {
    RETURN_IF_ERROR(CheckVariableName(name.scalar));
    RETURN_IF_ERROR(NoNul(name.scalar));
    RETURN_IF_ERROR(NoNul(content.scalar));
    (*spec.mutable_env())[name.scalar] = content.scalar;
  }
  return absl::OkStatus();
}

absl::Status ReadName(const YamlNode& value, v1::JobSpec& spec) {
  RETURN_IF_ERROR(CheckJobName(value.scalar));
  spec.set_name(value.scalar);
  return absl::OkStatus();
}

absl::Status ReadCommand(const YamlNode& value, v1::JobSpec& spec) {
  if (value.items.empty()) {
    return absl::InvalidArgumentError(
        "the list is empty; expected one such as [./train, --epochs, \"10\"]");
  }
  if (value.items[0].scalar.empty()) {
    return absl::InvalidArgumentError("its first item, the program, is empty text");
  }
  for (const YamlNode& item : value.items) {
    RETURN_IF_ERROR(NoNul(item.scalar));
    spec.add_command(item.scalar);
  }
  return absl::OkStatus();
}

const std::vector<Key>* DocumentKeys() {
  static const std::vector<Key>* const keys = new std::vector<Key>{
      {"name", kText, ReadName},
      {"command", kList, ReadCommand},
      {"nodes", kText, CADRE_SCALAR(ParseNodeRange, *spec.mutable_nodes() = parsed)},
      {"workers_per_node", kText,
       CADRE_SCALAR(ParseWorkersPerNode, *spec.mutable_workers_per_node() = parsed)},
      {"env", kMap, ReadEnv},
      {"working_dir", kText, CADRE_TEXT(spec.set_working_dir(value.scalar))},
      {"resources", kMap, nullptr, ResourceKeys},
      {"placement", kMap, nullptr, PlacementKeys},
      {"rendezvous", kMap, nullptr, RendezvousKeys},
      {"timeouts", kMap, nullptr, TimeoutKeys},
      {"restart", kMap, nullptr, RestartKeys},
      {"elastic", kMap, nullptr, ElasticKeys},
      {"spares", kText, CADRE_SCALAR(ParseCount, spec.set_spares(parsed))},
      {"priority", kText, CADRE_SCALAR(ParsePriority, spec.set_priority(parsed))},
      {"logs", kMap, nullptr, LogKeys},
      {"slurm", kMap, nullptr, SlurmKeys},
      {"role", kText, CADRE_TEXT(spec.set_role(value.scalar))},
      {"agent_store", kText, CADRE_SCALAR(ParseBoolean, spec.set_agent_store(parsed))},
      {"encrypt", kText, CADRE_SCALAR(ParseBoolean, spec.set_encrypt(parsed))},
  };
  return keys;
}

const Key* FindKey(const std::vector<Key>& keys, const std::string& name) {
  for (const Key& key : keys) {
    if (name == key.name) return &key;
  }
  return nullptr;
}

absl::Status UnknownKey(const std::vector<Key>& keys, const YamlNode& name,
                        absl::string_view file) {
  std::vector<std::string> known;
  for (const Key& key : keys) known.push_back(key.name);
  const std::string nearest = Nearest(name.scalar, known);
  std::string text = absl::StrCat("unknown key '", name.scalar.substr(0, 64), "'");
  if (!nearest.empty()) absl::StrAppend(&text, "; did you mean '", nearest, "'?");
  return ErrorAt(file, name, text);
}

// Keys are text and none comes twice.
absl::Status CheckNames(const YamlNode& mapping, absl::string_view file) {
  std::set<std::string> seen;
  for (const auto& [name, value] : mapping.entries) {
    (void)value;
    if (name.kind != kText) return ErrorAt(file, name, "expected a key");
    if (!seen.insert(name.scalar).second) {
      return ErrorAt(file, name, absl::StrCat("key '", name.scalar.substr(0, 64), "' comes twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckKind(const Key& key, const YamlNode& value, absl::string_view file) {
  const char* expected = key.kind == kText ? "a single value" : KindName(key.kind);
  if (value.kind != key.kind) {
    return ErrorAt(
        file, value,
        absl::StrCat("'", key.name, "': expected ", expected, ", got ", KindName(value.kind)));
  }
  // All lists, and the one mapping with free keys, hold single values.
  if (key.kind == kList) {
    for (const YamlNode& item : value.items) {
      if (item.kind == kText) continue;
      return ErrorAt(file, item,
                     absl::StrCat("'", key.name, "': expected a list of single values"));
    }
  }
  if (key.kind == kMap && key.below == nullptr) {
    RETURN_IF_ERROR(CheckNames(value, file));
    for (const auto& [name, item] : value.entries) {
      if (item.kind == kText) continue;
      return ErrorAt(
          file, item,
          absl::StrCat("'", name.scalar, "': expected a single value, got ", KindName(item.kind)));
    }
  }
  return absl::OkStatus();
}

// What is wrong in a document, as far as it was read.
using Errors = std::vector<std::string>;

void Keep(const absl::Status& status, Errors& errors) {
  if (!status.ok()) errors.emplace_back(status.message());
}

// All that is wrong goes to `errors`: who mends a file wants to see it once.
void ReadMapping(const std::vector<Key>& keys, const YamlNode& mapping, absl::string_view file,
                 v1::JobSpec& spec, Errors& errors) {
  Keep(CheckNames(mapping, file), errors);
  for (const auto& [name, value] : mapping.entries) {
    // CheckNames has said so.
    if (name.kind != kText) continue;
    const Key* key = FindKey(keys, name.scalar);
    const absl::Status checked =
        key == nullptr ? UnknownKey(keys, name, file) : CheckKind(*key, value, file);
    if (!checked.ok()) {
      Keep(checked, errors);
    } else if (key->below != nullptr) {
      ReadMapping(*key->below(), value, file, spec, errors);
    } else if (const absl::Status read = key->read(value, spec); !read.ok()) {
      Keep(ErrorAt(file, value, absl::StrCat("'", key->name, "': ", read.message())), errors);
    }
  }
}

}  // namespace

absl::StatusOr<v1::JobSpec> ReadSpec(absl::string_view text, absl::string_view file) {
  ASSIGN_OR_RETURN(const YamlNode root, ParseYaml(text, file));
  if (root.kind != kMap) {
    return ErrorAt(file, root,
                   absl::StrCat("expected a mapping with 'command' and other keys, got ",
                                KindName(root.kind)));
  }
  v1::JobSpec spec;
  Errors errors;
  ReadMapping(*DocumentKeys(), root, file, spec, errors);
  // Not of one that was given and is wrong, or may be the key that is not known.
  const bool said = std::any_of(errors.begin(), errors.end(), [](const std::string& error) {
    return absl::StrContains(error, "'command'") || absl::StrContains(error, "expected a key");
  });
  if (spec.command().empty() && !said) {
    Keep(ErrorAt(file, root,
                 "'command' is missing: expected a list such as [./train, --epochs, \"10\"]"),
         errors);
  }
  if (errors.empty()) return spec;
  if (errors.size() > kMaxErrors) errors.resize(kMaxErrors);
  return absl::InvalidArgumentError(absl::StrJoin(errors, "\n"));
}

absl::StatusOr<v1::JobSpec> ReadSpecFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxSpecBytes));
  absl::StatusOr<v1::JobSpec> spec = ReadSpec(text, path);
  const bool named = absl::EndsWith(path, ".yaml") || absl::EndsWith(path, ".yml");
  if (spec.ok() || named) return spec;
  return absl::InvalidArgumentError(
      absl::StrCat(spec.status().message(), "; expected a job's file, which is YAML"));
}

absl::Status SpecErrorAt(const std::string& path, absl::string_view error) {
  const absl::string_view key = error.substr(0, error.find(':'));
  const absl::StatusOr<std::string> text = ReadTextFile(path, kMaxSpecBytes);
  const absl::StatusOr<YamlNode> root = text.ok() ? ParseYaml(*text, path) : text.status();
  const YamlNode* place = root.ok() ? &*root : nullptr;
  for (const absl::string_view name : absl::StrSplit(key, '.')) {
    const YamlNode* value = nullptr;
    for (size_t i = 0; place != nullptr && i < place->entries.size(); ++i) {
      if (place->entries[i].first.scalar == name) value = &place->entries[i].second;
    }
    place = value;
  }
  if (place == nullptr) return absl::InvalidArgumentError(absl::StrCat(path, ": ", error));
  return ErrorAt(path, *place, error);
}

void FillSpecDefaults(v1::JobSpec& spec) {
  const auto fill = [](google::protobuf::Duration* field, bool present, absl::Duration value) {
    if (!present) *field = ToProto(value);
  };
  if (spec.nodes().min() == 0) spec.mutable_nodes()->set_min(1);
  if (spec.nodes().max() == 0) spec.mutable_nodes()->set_max(spec.nodes().min());
  if (spec.workers_per_node().kind() == v1::WorkersPerNode::KIND_UNSPECIFIED) {
    spec.mutable_workers_per_node()->set_kind(v1::WorkersPerNode::COUNT);
    spec.mutable_workers_per_node()->set_count(1);
  }
  auto& rendezvous = *spec.mutable_rendezvous();
  const bool has_join = rendezvous.has_join_timeout();
  const bool has_settle = rendezvous.has_settle();
  fill(rendezvous.mutable_join_timeout(), has_join, absl::Minutes(10));
  fill(rendezvous.mutable_settle(), has_settle, absl::Seconds(3));
  auto& timeouts = *spec.mutable_timeouts();
  const bool has_start = timeouts.has_start();
  const bool has_grace = timeouts.has_stop_grace();
  fill(timeouts.mutable_start(), has_start, absl::Minutes(5));
  fill(timeouts.mutable_stop_grace(), has_grace, absl::Seconds(30));
  auto& restart = *spec.mutable_restart();
  const bool has_backoff = restart.has_backoff_min();
  const bool has_backoff_max = restart.has_backoff_max();
  fill(restart.mutable_backoff_min(), has_backoff, absl::Seconds(1));
  fill(restart.mutable_backoff_max(), has_backoff_max, absl::Minutes(1));
  if (spec.placement().bind().empty()) spec.mutable_placement()->set_bind("none");
  if (spec.role().empty()) spec.set_role("default");
  if (spec.logs().dir().empty()) spec.mutable_logs()->set_dir("logs");
}

std::map<std::string, std::vector<std::string>> SpecKeys() {
  std::map<std::string, std::vector<std::string>> all;
  for (const Key& key : *DocumentKeys()) {
    all[""].push_back(key.name);
    if (key.below == nullptr) continue;
    for (const Key& below : *key.below()) all[key.name].push_back(below.name);
  }
  return all;
}

}  // namespace cadre::launcher
