// Parses the file that describes a job into the spec.
#include "launcher/spec/job_spec.h"

#include <algorithm>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/duration.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "google/protobuf/descriptor.pb.h"
#include "launcher/flags/nearest.h"
#include "launcher/spec/queue_values.h"
#include "launcher/spec/scalars.h"
#include "launcher/spec/text_file.h"
#include "launcher/spec/yaml_tree.h"

namespace cadre::launcher {
namespace {

// The most errors of one document; more are usually of the same kind.
constexpr size_t kMaxErrors = 20;

// One key of a mapping. Its reader gets a value of the given kind; the value's line and column are
// added to its error. It replaces what the spec has of it.
struct Key {
  const char* name;
  YamlNode::Kind kind;
  // As in SpecProperty; for a mapping with `below` nullptr.
  const char* form;
  const char* preset;
  const char* help;
  absl::Status (*read)(const YamlNode& value, v1::JobSpec& spec);
  // For kMapping, in place of `read`: the keys inside it. Empty: any keys.
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
// Reads each item of a list with `parse` into the repeated field `field` of the spec's `message`.
#define CADRE_LIST(parse, message, field)                        \
  [](const YamlNode& value, v1::JobSpec& spec) -> absl::Status { \
    spec.message->clear_##field();                               \
    for (const YamlNode& item : value.items) {                   \
      ASSIGN_OR_RETURN(const auto parsed, parse(item.scalar));   \
      spec.message->add_##field(parsed);                         \
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
      {"gpus_per_worker", kText, "N", "0", "GPUs that one worker needs of its node.",
       CADRE_SCALAR(ParseCount, spec.mutable_resources()->set_gpus_per_worker(parsed))},
      {"cpus_per_worker", kText, "N", "0", "Cores that one worker needs of its node.",
       CADRE_SCALAR(ParseCount, spec.mutable_resources()->set_cpus_per_worker(parsed))},
      {"memory_per_worker", kText, "SIZE", "no limit",
       "Memory that one worker needs, such as 8GiB; a submitted job is held to it.",
       CADRE_SCALAR(ParseSize, spec.mutable_resources()->set_memory_per_worker(parsed))},
  };
  return keys;
}

const std::vector<Key>* PlacementKeys() {
  static const std::vector<Key>* const keys = new std::vector<Key>{
      {"bind", kText, "none|core|numa|gpu", "none", "What each worker is bound to.",
       CADRE_SCALAR(ParseBind, spec.mutable_placement()->set_bind(parsed))},
      {"spread_over", kText, "LABEL", "none",
       "Node label over whose values the job is spread (a queue only).",
       CADRE_TEXT(spec.mutable_placement()->set_spread_over(value.scalar))},
      {"pack", kText, "LABEL", "none",
       "Node label of which the job takes few values (a queue only).",
       CADRE_TEXT(spec.mutable_placement()->set_pack(value.scalar))},
      {"nodes", kList, "LIST", "any", "Nodes that are among those of the job (a queue only).",
       CADRE_LIST(ParseNodeName, mutable_placement(), nodes)},
      {"exclude", kList, "LIST", "none", "Nodes that the job is not to have (a queue only).",
       CADRE_LIST(ParseNodeName, mutable_placement(), exclude)},
      {"labels", kList, "LIST", "none",
       "What each node has: NAME=VALUE, or either; alternatives with '|' (a queue only).",
       CADRE_LIST(ParseNodeLabel, mutable_placement(), labels)},
  };
  return keys;
}

const std::vector<Key>* RendezvousKeys() {
  static const std::vector<Key>* const keys = new std::vector<Key>{
      {"join_timeout", kText, "TIME", "10m", "How long to wait for the nodes.",
       CADRE_SCALAR(ParseDuration,
                    *spec.mutable_rendezvous()->mutable_join_timeout() = ToProto(parsed))},
      {"settle", kText, "TIME", "3s", "With MIN..MAX nodes: how long to wait for one more.",
       CADRE_SCALAR(ParseDuration, *spec.mutable_rendezvous()->mutable_settle() = ToProto(parsed))},
  };
  return keys;
}

const std::vector<Key>* TimeoutKeys() {
  static const std::vector<Key>* const keys = new std::vector<Key>{
      {"start", kText, "TIME", "5m", "From assignment to all workers running.",
       CADRE_SCALAR(ParseDuration, *spec.mutable_timeouts()->mutable_start() = ToProto(parsed))},
      {"progress", kText, "TIME", "never",
       "A worker that has shown progress once, then none for this long, hangs.",
       CADRE_SCALAR(ParseDuration, *spec.mutable_timeouts()->mutable_progress() = ToProto(parsed))},
      {"silence", kText, "TIME", "never",
       "A worker without output and progress for this long hangs.",
       CADRE_SCALAR(ParseDuration, *spec.mutable_timeouts()->mutable_silence() = ToProto(parsed))},
      {"stop_grace", kText, "TIME", "30s", "Between SIGTERM and SIGKILL.",
       CADRE_SCALAR(ParseDuration,
                    *spec.mutable_timeouts()->mutable_stop_grace() = ToProto(parsed))},
      {"total", kText, "TIME", "none", "Limit for the whole job.",
       CADRE_SCALAR(ParseDuration, *spec.mutable_timeouts()->mutable_total() = ToProto(parsed))},
      {"warning", kText, "TIME", "none",
       "So long before the end of total the workers are sent warning_signal.",
       CADRE_SCALAR(ParseDuration, *spec.mutable_timeouts()->mutable_warning() = ToProto(parsed))},
      {"warning_signal", kText, "NAME", "TERM", "The signal, such as USR1.",
       CADRE_SCALAR(ParseSignal, spec.mutable_timeouts()->set_warning_signal(parsed))},
  };
  return keys;
}

const std::vector<Key>* RestartKeys() {
  static const std::vector<Key>* const keys = new std::vector<Key>{
      {"max", kText, "N", "0", "Restarts allowed, counted for the whole job.",
       CADRE_SCALAR(ParseCount, spec.mutable_restart()->set_max(parsed))},
      {"window", kText, "TIME", "all", "Only restarts within this time count.",
       CADRE_SCALAR(ParseDuration, *spec.mutable_restart()->mutable_window() = ToProto(parsed))},
      {"backoff", kText, "MIN..MAX", "1s..1m", "Wait before the second and later restarts.",
       CADRE_SCALAR(ParseDurationRange,
                    *spec.mutable_restart()->mutable_backoff_min() = ToProto(parsed.first);
                    *spec.mutable_restart()->mutable_backoff_max() = ToProto(parsed.second))},
      {"on", kList, "LIST", "all of them",
       "Causes tried again: [crash, hang, out_of_memory, node_lost, preempted, start_timeout].",
       CADRE_LIST(ParseFailureCause, mutable_restart(), on)},
      {"never_exit_codes", kList, "LIST", "93", "Exit codes never tried again.",
       CADRE_LIST(ParseExitCode, mutable_restart(), never_exit_codes)},
      {"in_place", kText, "true|false", "false",
       "Workers that can rejoin keep their process when others are replaced.",
       CADRE_SCALAR(ParseBoolean, spec.mutable_restart()->set_in_place(parsed))},
      {"standby", kText, "true|false", "as in_place",
       "Keep processes of a program with the worker runtime started for workers that are lost.",
       CADRE_SCALAR(ParseBoolean, spec.mutable_restart()->set_standby(parsed))},
      {"warm", kText, "true|false", "true",
       "Restart workers of a Python program from a process that has imported its packages.",
       CADRE_SCALAR(ParseBoolean, spec.mutable_restart()->set_warm(parsed))},
      {"preload", kList, "LIST", "none",
       "Modules that such a process imports besides those that the program was seen to import.",
       CADRE_LIST(ParseModuleName, mutable_restart(), preload)},
      {"requeue", kText, "true|false", "true",
       "A submitted job that loses a node goes on with another one; false: it fails.",
       CADRE_SCALAR(ParseBoolean, spec.mutable_restart()->set_requeue(parsed))},
  };
  return keys;
}

const std::vector<Key>* ElasticKeys() {
  static const std::vector<Key>* const keys = new std::vector<Key>{
      {"scale_up", kText, "WHEN", "at_checkpoint",
       "When a node that joins later comes in: immediately, at_checkpoint or never.",
       CADRE_SCALAR(ParseScaleUp, spec.mutable_elastic()->set_scale_up(parsed))},
      {"unit", kText, "N", "1", "The number of nodes is a multiple of this.",
       CADRE_SCALAR(ParseUnit, spec.mutable_elastic()->set_unit(parsed))},
      {"checkpoint_signal", kText, "NAME", "none",
       "With at_checkpoint: sent to the workers when a node waits, such as USR1.",
       CADRE_SCALAR(ParseSignal, spec.mutable_elastic()->set_checkpoint_signal(parsed))},
  };
  return keys;
}

// A time to come, as `--begin` of sbatch has it.
absl::StatusOr<int64_t> ParseUnixMillis(const std::string& text) {
  ASSIGN_OR_RETURN(const absl::Time time,
                   ParseTimeToCome(text, absl::Now(), absl::LocalTimeZone()));
  return absl::ToUnixMillis(time);
}

absl::Status ReadDependencies(const YamlNode& value, v1::JobSpec& spec) {
  v1::QueueOptions& queue = *spec.mutable_queue();
  queue.clear_dependencies();
  for (const YamlNode& item : value.items) {
    ASSIGN_OR_RETURN(const std::vector<v1::Dependency> read, ParseDependency(item.scalar));
    for (const v1::Dependency& one : read) *queue.add_dependencies() = one;
  }
  return absl::OkStatus();
}

const std::vector<Key>* QueueKeys() {
  static const std::vector<Key>* const keys = new std::vector<Key>{
      {"begin", kText, "WHEN", "at once",
       "The job does not begin before: 2026-12-01T08:00, 16:30, now+1hour (a queue only).",
       CADRE_SCALAR(ParseUnixMillis, spec.mutable_queue()->set_begin_unix_ms(parsed))},
      {"deadline", kText, "WHEN", "none",
       "It is cancelled if it has not ended by then (a queue only).",
       CADRE_SCALAR(ParseUnixMillis, spec.mutable_queue()->set_deadline_unix_ms(parsed))},
      {"held", kText, "true|false", "false",
       "It waits until 'cadre release' releases it (a queue only).",
       CADRE_SCALAR(ParseBoolean, spec.mutable_queue()->set_held(parsed))},
      {"dependencies", kList, "LIST", "none",
       "Jobs that it waits for: [afterok:12, afterany:13, singleton] (a queue only).",
       ReadDependencies},
      {"any_dependency", kText, "true|false", "false", "One of them is enough (a queue only).",
       CADRE_SCALAR(ParseBoolean, spec.mutable_queue()->set_any_dependency(parsed))},
      {"keep_if_never", kText, "true|false", "false",
       "It stays in the queue if they can never be met; false: it is cancelled (a queue only).",
       CADRE_SCALAR(ParseBoolean, spec.mutable_queue()->set_keep_if_never(parsed))},
  };
  return keys;
}

const std::vector<Key>* LogKeys() {
  static const std::vector<Key>* const keys = new std::vector<Key>{
      {"dir", kText, "DIR", "logs", "Root of the log files.",
       CADRE_TEXT(spec.mutable_logs()->set_dir(value.scalar))},
      {"tee", kList, "LIST", "all", "Ranks shown on the terminal.",
       CADRE_LIST(ParseCount, mutable_logs(), tee)},
  };
  return keys;
}

const std::vector<Key>* SlurmKeys() {
  static const std::vector<Key>* const keys = new std::vector<Key>{
      {"partition", kText, "NAME", "Slurm's",
       "Partition (cadre submit --slurm and cadre slurm script only).",
       CADRE_SCALAR(ParseSlurmName, spec.mutable_slurm()->set_partition(parsed))},
      {"account", kText, "NAME", "Slurm's", "Account, likewise.",
       CADRE_SCALAR(ParseSlurmName, spec.mutable_slurm()->set_account(parsed))},
      {"extra", kList, "LIST", "none", "Further options of sbatch, likewise.",
       CADRE_LIST(ParseSbatchOption, mutable_slurm(), extra)},
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
  spec.clear_command();
  for (const YamlNode& item : value.items) {
    RETURN_IF_ERROR(NoNul(item.scalar));
    spec.add_command(item.scalar);
  }
  return absl::OkStatus();
}

const std::vector<Key>* DocumentKeys() {
  static const std::vector<Key>* const keys = new std::vector<Key>{
      {"name", kText, "NAME", "the program's name", "Name of the job.", ReadName},
      {"command", kList, "LIST", "the command line", "The program and its arguments.", ReadCommand},
      {"nodes", kText, "N|MIN..MAX", "1", "Nodes that take part.",
       CADRE_SCALAR(ParseNodeRange, *spec.mutable_nodes() = parsed)},
      {"workers_per_node", kText, "N|gpu|cpu|auto", "1", "Workers each node starts.",
       CADRE_SCALAR(ParseWorkersPerNode, *spec.mutable_workers_per_node() = parsed)},
      {"env", kMap, "TEXT", "none", "Variable NAME of the workers' environment.", ReadEnv},
      {"working_dir", kText, "DIR", "here", "Where workers start.",
       CADRE_TEXT(spec.set_working_dir(value.scalar))},
      {"resources", kMap, nullptr, nullptr, nullptr, nullptr, ResourceKeys},
      {"placement", kMap, nullptr, nullptr, nullptr, nullptr, PlacementKeys},
      {"rendezvous", kMap, nullptr, nullptr, nullptr, nullptr, RendezvousKeys},
      {"timeouts", kMap, nullptr, nullptr, nullptr, nullptr, TimeoutKeys},
      {"restart", kMap, nullptr, nullptr, nullptr, nullptr, RestartKeys},
      {"elastic", kMap, nullptr, nullptr, nullptr, nullptr, ElasticKeys},
      {"spares", kText, "N", "0",
       "Nodes in reserve that a launch (srun, a host file) may have beyond its nodes.",
       CADRE_SCALAR(ParseCount, spec.set_spares(parsed))},
      {"priority", kText, "N", "0", "Higher is placed first (a queue only).",
       CADRE_SCALAR(ParsePriority, spec.set_priority(parsed))},
      {"queue", kMap, nullptr, nullptr, nullptr, nullptr, QueueKeys},
      {"logs", kMap, nullptr, nullptr, nullptr, nullptr, LogKeys},
      {"slurm", kMap, nullptr, nullptr, nullptr, nullptr, SlurmKeys},
      {"role", kText, "NAME", "default", "ROLE_NAME of the workers.",
       CADRE_TEXT(spec.set_role(value.scalar))},
      {"agent_store", kText, "true|false", "true",
       "The agent of rank 0's node serves PyTorch's store, where PyTorch is 2.1 or newer; false: "
       "rank 0 does.",
       CADRE_SCALAR(ParseBoolean, spec.set_agent_store(parsed))},
      {"encrypt", kText, "true|false", "false",
       "Workers encrypt what they send to other nodes over Cadre's sockets.",
       CADRE_SCALAR(ParseBoolean, spec.set_encrypt(parsed))},
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

// Keys must be text and unique.
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
  // All lists, and the one mapping with free keys, contain single values.
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

// Collects the errors of a document.
using Errors = std::vector<std::string>;

void Keep(const absl::Status& status, Errors& errors) {
  if (!status.ok()) errors.emplace_back(status.message());
}

// All errors are collected, so that the user sees them at once.
void ReadMapping(const std::vector<Key>& keys, const YamlNode& mapping, absl::string_view file,
                 v1::JobSpec& spec, Errors& errors) {
  Keep(CheckNames(mapping, file), errors);
  for (const auto& [name, value] : mapping.entries) {
    // CheckNames has reported it.
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

// "start, progress, silence"
std::string NamesOf(const std::vector<Key>& keys, absl::string_view prefix) {
  std::string names;
  for (const Key& key : keys) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", prefix, key.name);
  }
  return names;
}

// The path of a property that the user probably meant: a similar one, or one that ends with a
// similar key, as "progress" for timeouts.progress. Empty: none is similar.
std::string NearestPath(const std::string& path) {
  std::vector<std::string> paths;
  std::vector<std::string> last_keys;
  for (const SpecProperty& property : SpecProperties()) {
    paths.push_back(property.path);
    last_keys.push_back(property.path.substr(property.path.rfind('.') + 1));
  }
  const std::string nearest = Nearest(path, paths);
  if (!nearest.empty()) return nearest;
  const std::string key = Nearest(path.substr(path.rfind('.') + 1), last_keys);
  const auto found = std::find(last_keys.begin(), last_keys.end(), key);
  return found == last_keys.end() ? "" : paths[found - last_keys.begin()];
}

// `section` is the key at which the path begins; nullptr: the job has none of that name.
absl::Status UnknownPath(const std::string& path, const Key* section) {
  const std::string nearest = NearestPath(path);
  std::string text = absl::StrCat("unknown path '", path.substr(0, 64), "'",
                                  nearest.empty() ? "; " : "; did you mean '", nearest,
                                  nearest.empty() ? "" : "'? ");
  if (section == nullptr) {
    absl::StrAppend(&text, "a job has ", NamesOf(*DocumentKeys(), ""));
  } else if (section->below == nullptr) {
    absl::StrAppend(&text, "'", section->name, "' has no keys");
  } else {
    absl::StrAppend(&text, "'", section->name, "' has ", NamesOf(*section->below(), ""));
  }
  return absl::InvalidArgumentError(text);
}

// Reads the text of a value as the file of a spec would, and stores it.
absl::Status SetKey(const Key& key, const std::string& path, const std::string& text,
                    v1::JobSpec& spec) {
  YamlNode value;
  value.kind = kText;
  value.scalar = text;
  if (key.kind == kList) {
    ASSIGN_OR_RETURN(value, ParseYaml(text, path));
    if (value.kind != kList) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", path, "': expected a list such as [a, b], got ", KindName(value.kind)));
    }
    for (const YamlNode& item : value.items) {
      if (item.kind == kText) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("'", path, "': expected a list of single values"));
    }
  }
  const absl::Status read = key.read(value, spec);
  if (read.ok()) return read;
  return absl::InvalidArgumentError(absl::StrCat("'", path, "': ", read.message()));
}

// Sets one entry of a mapping with free keys.
absl::Status SetEntry(const Key& mapping, const std::string& name, const std::string& text,
                      v1::JobSpec& spec) {
  if (name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", mapping.name,
                                                   "' is a section, not a single value: set ",
                                                   mapping.name, ".NAME=VALUE"));
  }
  YamlNode key, value, entries;
  key.kind = value.kind = kText;
  key.scalar = name;
  value.scalar = text;
  entries.kind = kMap;
  entries.entries.emplace_back(std::move(key), std::move(value));
  const absl::Status read = mapping.read(entries, spec);
  if (read.ok()) return read;
  return absl::InvalidArgumentError(absl::StrCat("'", mapping.name, "': ", read.message()));
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
  // Not if the command is given and wrong, or may be the unknown key.
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

namespace {

absl::Status SetProperty(absl::string_view assignment, v1::JobSpec& spec) {
  const size_t equals = assignment.find('=');
  if (equals == absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected PATH=VALUE, such as timeouts.progress=10m, got '",
                     assignment.substr(0, 64), "'"));
  }
  const std::string path(assignment.substr(0, equals));
  const std::string text(assignment.substr(equals + 1));
  const size_t dot = path.find('.');
  const bool deeper = dot != std::string::npos;
  const std::string rest = deeper ? path.substr(dot + 1) : "";
  const Key* const key = FindKey(*DocumentKeys(), path.substr(0, dot));
  if (key == nullptr) return UnknownPath(path, nullptr);
  if (key->kind != kMap) {
    return deeper ? UnknownPath(path, key) : SetKey(*key, path, text, spec);
  }
  if (key->below == nullptr) return SetEntry(*key, rest, text, spec);
  if (!deeper) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "' is a section, not a single value: set one of ",
                     NamesOf(*key->below(), absl::StrCat(path, "."))));
  }
  const Key* const below = FindKey(*key->below(), rest);
  return below == nullptr ? UnknownPath(path, key) : SetKey(*below, path, text, spec);
}

}  // namespace

absl::Status SetInSpec(absl::string_view assignment, v1::JobSpec& spec) {
  const absl::Status set = SetProperty(assignment, spec);
  if (set.ok()) return set;
  // What it quotes may have several lines.
  return absl::InvalidArgumentError(EscapeControl(set.message()));
}

std::vector<SpecProperty> SpecProperties() {
  std::vector<SpecProperty> all;
  const auto add = [&](const std::string& path, const Key& key) {
    all.push_back({path, key.form, key.preset, key.help});
  };
  for (const Key& key : *DocumentKeys()) {
    if (key.kind != kMap) {
      add(key.name, key);
    } else if (key.below == nullptr) {
      add(absl::StrCat(key.name, ".NAME"), key);
    } else {
      for (const Key& below : *key.below()) add(absl::StrCat(key.name, ".", below.name), below);
    }
  }
  return all;
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

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// A path has 4,096 bytes at most.
constexpr size_t kMostShown = 4096;

// `path` is the path of the message, with a dot at its end, or empty.
absl::Status CheckFields(const Message& message, const std::string& path) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* const field : fields) {
    const std::string name = absl::StrCat(path, field->name());
    const bool several = field->is_repeated();
    const int size = several ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < size; ++i) {
      if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
        RETURN_IF_ERROR(CheckFields(several ? reflection.GetRepeatedMessage(message, field, i)
                                            : reflection.GetMessage(message, field),
                                    absl::StrCat(name, ".")));
      } else if (field->type() == FieldDescriptor::TYPE_STRING) {
        const std::string text = several ? reflection.GetRepeatedString(message, field, i)
                                         : reflection.GetString(message, field);
        if (IsUtf8(text)) continue;
        // Values of environment variables may be secrets.
        const std::string shown =
            message.GetDescriptor()->options().map_entry()
                ? ""
                : absl::StrCat(": '", absl::CHexEscape(text.substr(0, kMostShown)), "'");
        return absl::InvalidArgumentError(absl::StrCat(
            name, shown,
            " is not UTF-8 text, which is all that a server takes; choose another name"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckUtf8Fields(const Message& message) { return CheckFields(message, ""); }

}  // namespace cadre::launcher
