#include "launcher/slurm/sinfo_text.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/host_ranges.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/flags/nearest.h"
#include "launcher/slurm/column_format.h"
#include "launcher/slurm/option_parser.h"
#include "launcher/slurm/option_values.h"
#include "nlohmann/json.hpp"

namespace cadre::launcher {
namespace {

constexpr char kUsual[] =
    "partition:9 ,available:.5 ,time:.10 ,nodes:.6 ,statecompact:.6 ,nodelist:0";
constexpr char kLong[] =
    "partition:9 ,available:.5 ,time:.10 ,size:.10 ,root:.4 ,oversubscribe:.8 ,groups:.10 "
    ",nodes:.6 ,statelong:.11 ,reservation:.11 ,nodelist:0";
constexpr char kSummary[] = "partition:9 ,available:.5 ,time:.10 ,nodeaiot:.16 ,nodelist:0";
constexpr char kByNode[] = "nodelist:0 ,nodes:.6 ,partition:.9 ,statecompact:6";
constexpr char kByNodeLong[] =
    "nodelist:0 ,nodes:.6 ,partition:.9 ,statelong:.11 ,cpus:4 ,socketcorethread:.8 ,memory:.6 "
    ",disk:.8 ,weight:.6 ,features:.8 ,reason:20";
constexpr char kReasons[] = "reason:20 ,user:9 ,timestamp:19 ,nodelist:0";

struct State {
  const char* name;
  const char* compact;
};
// In the order of sinfo's lines.
constexpr State kStates[] = {
    {"completing", "comp"}, {"down*", "down*"},     {"draining", "drng"}, {"drained", "drain"},
    {"mixed", "mix"},       {"allocated", "alloc"}, {"idle", "idle"},
};
// Other names of states that a node of Cadre has never.
constexpr const char* kNever[] = {
    "fail",       "failing",       "future",       "maint",    "npc",         "perfctrs", "planned",
    "power_down", "powering_down", "powered_down", "power_up", "powering_up", "reboot",   "resv",
    "reserved",   "unk",           "unknown",      "error",    "blocked"};

absl::Status Error(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("error: ", text));
}

std::string StateOf(const v1::ClusterNodeStatus& node, const NodeRecord& record) {
  if (!node.connected()) return "down*";
  if (node.drained()) return node.parts().empty() ? "drained" : "draining";
  if (node.parts().empty()) {
    return node.leftovers() > 0 || node.remains_size() > 0 ? "completing" : "idle";
  }
  const bool full =
      record.cpus_in_use >= record.cpus || (record.gpus > 0 && record.gpus_in_use >= record.gpus);
  return full ? "allocated" : "mixed";
}

NodeRecord RecordOf(const v1::ClusterNodeStatus& node) {
  NodeRecord record;
  record.name = node.name();
  record.cpus = node.cpus();
  record.gpus = node.gpus();
  record.memory = node.memory();
  for (const v1::Part& part : node.parts()) {
    // The share of a step is in that of its batch job.
    if (part.within() != 0) continue;
    record.cpus_in_use += part.cpus();
    record.gpus_in_use += part.gpus();
    record.memory_in_use += part.memory();
  }
  const std::map<std::string, std::string> labels(node.labels().begin(), node.labels().end());
  for (const auto& [name, value] : labels)
    record.features.push_back(absl::StrCat(name, "=", value));
  if (node.drained()) record.reason = node.drain_reason();
  if (!node.connected()) record.reason = "Not responding";
  record.version = node.version();
  record.state = StateOf(node, record);
  return record;
}

// A name as pieces of text and numbers.
std::vector<std::pair<std::string, uint64_t>> Pieces(const std::string& name) {
  std::vector<std::pair<std::string, uint64_t>> pieces(1);
  for (size_t at = 0; at < name.size();) {
    size_t end = at;
    while (end < name.size() && absl::ascii_isdigit(name[end])) ++end;
    if (end == at) {
      pieces.back().first += name[at++];
    } else {
      if (!absl::SimpleAtoi(name.substr(at, end - at), &pieces.back().second)) {
        pieces.back().first += name.substr(at, end - at);
      }
      pieces.emplace_back();
      at = end;
    }
  }
  return pieces;
}

const std::vector<Option>& Table() {
  constexpr OptionValue kNo = OptionValue::kNone, kYes = OptionValue::kRequired;
  static const auto* const table = new std::vector<Option>{
      {"all", 'a', kNo},         {"cluster", 'M', kYes},     {"clusters", 'M', kYes},
      {"dead", 'd', kNo},        {"exact", 'e', kNo},        {"federation", '\0', kNo},
      {"format", 'o', kYes},     {"Format", 'O', kYes},      {"future", 'F', kNo},
      {"help", '\0', kNo},       {"hide", '\0', kNo},        {"iterate", 'i', kYes},
      {"json", '\0', kNo},       {"list-reasons", 'R', kNo}, {"local", '\0', kNo},
      {"long", 'l', kNo},        {"noconvert", '\0', kNo},   {"Node", 'N', kNo},
      {"nodes", 'n', kYes},      {"noheader", 'h', kNo},     {"partition", 'p', kYes},
      {"reservation", 'T', kNo}, {"responding", 'r', kNo},   {"sort", 'S', kYes},
      {"states", 't', kYes},     {"summarize", 's', kNo},    {"usage", '\0', kNo},
      {"verbose", 'v', kNo},     {"version", 'V', kNo},
  };
  return *table;
}

absl::Status AddStates(absl::string_view list, SinfoOptions* options) {
  std::vector<std::string> names;
  for (const std::string& item : ItemsOf(list)) {
    const std::string wanted = absl::AsciiStrToLower(item);
    bool known = wanted == "all";
    for (const char* const never : kNever) known = known || wanted == never;
    if (wanted == "drain") options->states.insert({"drained", "draining"});
    for (const State& state : kStates) {
      const bool fits = wanted == state.name || wanted == state.compact ||
                        (wanted == "down" && std::string(state.name) == "down*") || wanted == "all";
      if (fits) options->states.insert(state.name);
      known = known || fits;
      names.push_back(state.name);
    }
    if (!known) {
      const std::string meant = Nearest(wanted, names);
      return Error(absl::StrCat("Bad state string: ", OneLine(item, 64),
                                meant.empty() ? "" : absl::StrCat("; did you mean ", meant, "?")));
    }
    // A state that no node has selects none.
    if (options->states.empty()) options->states.insert(wanted);
  }
  return absl::OkStatus();
}

absl::Status TakeOption(const GivenOption& given, SinfoOptions* options) {
  const std::string& name = given.name;
  if (name == "help" || name == "usage") options->answer = SinfoOptions::Answer::kHelp;
  if (name == "version") options->answer = SinfoOptions::Answer::kVersion;
  if (name == "dead") options->dead = true;
  if (name == "responding") options->responding = true;
  if (name == "json") options->json = true;
  if (name == "list-reasons") options->reasons = true;
  if (name == "long") options->long_list = true;
  if (name == "Node") options->by_node = true;
  if (name == "noheader") options->header = false;
  if (name == "summarize") options->summary = true;
  if (name == "reservation") return Error("-T: there are no reservations");
  if (name == "states") return AddStates(given.value, options);
  if (name == "partition") {
    for (std::string& one : ItemsOf(given.value)) options->partitions.insert(std::move(one));
  }
  if (name == "nodes") {
    const auto nodes = ExpandHosts(given.value);
    if (!nodes.ok()) return Error(nodes.status().message());
    options->nodes.insert(nodes->begin(), nodes->end());
  }
  if (name == "format" || name == "Format") {
    options->format = given.value;
    options->long_format = name == "Format";
  }
  if (name == "iterate") {
    const absl::StatusOr<uint32_t> seconds = ParseSlurmCount(given.value, 1);
    if (!seconds.ok()) return Error(absl::StrCat("--iterate=", given.value));
    options->every_seconds = *seconds;
  }
  return absl::OkStatus();
}

// --- fields ---

using Group = std::vector<const NodeRecord*>;
using Value = std::string (*)(const Group& nodes);

struct SinfoField {
  // Of -o; '\0': there is none.
  char letter;
  // Of -O.
  const char* name;
  const char* header;
  // Of a group of nodes; if not `sums`, all of them have the same.
  Value value;
  bool sums = false;
};

std::string NodeList(const Group& nodes) {
  std::vector<std::string> names;
  for (const NodeRecord* const node : nodes) names.push_back(node->name);
  return CompressHosts(names);
}

bool IsUsed(const NodeRecord& node) {
  return node.state == "mixed" || node.state == "allocated" || node.state == "completing";
}

// Of all nodes those that are in use, idle and of no use; and all.
std::string NodesByUse(const Group& nodes, bool with_others) {
  size_t used = 0, idle = 0;
  for (const NodeRecord* const node : nodes) {
    if (IsUsed(*node)) ++used;
    if (node->state == "idle") ++idle;
  }
  if (!with_others) return absl::StrCat(used, "/", idle);
  return absl::StrCat(used, "/", idle, "/", nodes.size() - used - idle, "/", nodes.size());
}

std::string CpusByUse(const Group& nodes) {
  uint64_t used = 0, idle = 0, other = 0, all = 0;
  for (const NodeRecord* const node : nodes) {
    const uint32_t taken = std::min(node->cpus_in_use, node->cpus);
    all += node->cpus;
    used += taken;
    (IsUsed(*node) || node->state == "idle" ? idle : other) += node->cpus - taken;
  }
  return absl::StrCat(used, "/", idle, "/", other, "/", all);
}

std::string Gres(uint32_t gpus) { return gpus == 0 ? "(null)" : absl::StrCat("gpu:", gpus); }

const std::vector<SinfoField>& Fields() {
  using Nodes = const Group&;
  const Value infinite = [](Nodes) -> std::string { return "infinite"; };
  const Value partition = [](Nodes) -> std::string { return absl::StrCat(kPartition, "*"); };
  const Value features = [](Nodes nodes) {
    return nodes[0]->features.empty() ? "(null)" : absl::StrJoin(nodes[0]->features, ",");
  };
  const Value not_known = [](Nodes) -> std::string { return "N/A"; };
  const Value state = [](Nodes nodes) { return nodes[0]->state; };
  const Value one = [](Nodes) -> std::string { return "1"; };
  const Value zero = [](Nodes) -> std::string { return "0"; };
  static const auto* const fields = new std::vector<SinfoField>{
      {'N', "nodelist", "NODELIST", NodeList, true},
      {'n', "nodehost", "HOSTNAMES", [](Nodes nodes) { return nodes[0]->name; }},
      {'o', "nodeaddr", "NODE_ADDR", [](Nodes nodes) { return nodes[0]->name; }},
      {'D', "nodes", "NODES", [](Nodes nodes) { return absl::StrCat(nodes.size()); }, true},
      {'A', "nodeai", "NODES(A/I)", [](Nodes nodes) { return NodesByUse(nodes, false); }, true},
      {'F', "nodeaiot", "NODES(A/I/O/T)", [](Nodes nodes) { return NodesByUse(nodes, true); },
       true},
      {'C', "cpusstate", "CPUS(A/I/O/T)", CpusByUse, true},
      {'P', "partition", "PARTITION", partition},
      {'R', "partitionname", "PARTITION", [](Nodes) -> std::string { return kPartition; }},
      {'a', "available", "AVAIL", [](Nodes) -> std::string { return "up"; }},
      {'l', "time", "TIMELIMIT", infinite},
      {'L', "defaulttime", "DEFAULTTIME", infinite},
      {'t', "statecompact", "STATE", [](Nodes nodes) { return CompactNodeState(nodes[0]->state); }},
      {'T', "statelong", "STATE", state},
      {'\0', "state", "STATE", state},
      {'\0', "statecomplete", "STATECOMPLETE", state},
      {'c', "cpus", "CPUS", [](Nodes nodes) { return absl::StrCat(nodes[0]->cpus); }},
      {'m', "memory", "MEMORY", [](Nodes nodes) { return absl::StrCat(nodes[0]->memory >> 20); }},
      {'\0', "allocmem", "ALLOCMEM",
       [](Nodes nodes) { return absl::StrCat(nodes[0]->memory_in_use >> 20); }},
      {'G', "gres", "GRES", [](Nodes nodes) { return Gres(nodes[0]->gpus); }},
      {'\0', "gresused", "GRES_USED",
       [](Nodes nodes) {
         return nodes[0]->gpus == 0 ? "(null)" : absl::StrCat("gpu:", nodes[0]->gpus_in_use);
       }},
      {'f', "features", "AVAIL_FEATURES", features},
      {'b', "features_act", "ACTIVE_FEATURES", features},
      {'E', "reason", "REASON",
       [](Nodes nodes) { return nodes[0]->reason.empty() ? "none" : nodes[0]->reason; }},
      {'u', "user", "USER", [](Nodes) -> std::string { return "Unknown"; }},
      {'U', "userlong", "USER", [](Nodes) -> std::string { return "Unknown"; }},
      {'H', "timestamp", "TIMESTAMP", [](Nodes) -> std::string { return "Unknown"; }},
      {'O', "cpusload", "CPU_LOAD", not_known},
      {'e', "freemem", "FREE_MEM", not_known},
      {'w', "weight", "WEIGHT", one},
      {'z', "socketcorethread", "S:C:T",
       [](Nodes nodes) { return absl::StrCat("1:", nodes[0]->cpus, ":1"); }},
      {'X', "sockets", "SOCKETS", one},
      {'Y', "cores", "CORES", [](Nodes nodes) { return absl::StrCat(nodes[0]->cpus); }},
      {'Z', "threads", "THREADS", one},
      {'d', "disk", "TMP_DISK", zero},
      {'s', "size", "JOB_SIZE", [](Nodes) -> std::string { return "1-infinite"; }},
      {'r', "root", "ROOT", [](Nodes) -> std::string { return "no"; }},
      {'h', "oversubscribe", "OVERSUBS", [](Nodes) -> std::string { return "NO"; }},
      {'g', "groups", "GROUPS", [](Nodes) -> std::string { return "all"; }},
      {'i', "reservation", "RESERVATION", [](Nodes) { return std::string(); }},
      {'v', "version", "VERSION", [](Nodes nodes) { return nodes[0]->version; }},
      {'V', "cluster", "CLUSTER", [](Nodes) -> std::string { return "cadre"; }},
      {'B', "maxcpuspernode", "MAX_CPUS_PER_NODE",
       [](Nodes) -> std::string { return "UNLIMITED"; }},
  };
  return *fields;
}

struct Column {
  ColumnOfFormat layout;
  const SinfoField* field;
};

absl::StatusOr<std::vector<Column>> ColumnsOf(const ColumnFormat& format, bool by_name) {
  std::vector<Column> columns;
  for (const ColumnOfFormat& layout : format.columns) {
    const SinfoField* found = nullptr;
    std::vector<std::string> names;
    for (const SinfoField& field : Fields()) {
      const bool fits = by_name ? layout.field == field.name
                                : layout.field == absl::string_view(&field.letter, 1);
      if (fits && (by_name || field.letter != '\0')) found = &field;
      if (by_name) names.push_back(field.name);
    }
    if (found == nullptr) {
      const std::string meant = Nearest(layout.field, names);
      return Error(absl::StrCat("Invalid node format specification: ",
                                OneLine(absl::StrCat(layout.field, layout.suffix), 64),
                                meant.empty() ? "" : absl::StrCat("; did you mean ", meant, "?")));
    }
    columns.push_back({layout, found});
  }
  return columns;
}

std::pair<std::string, bool> FormatOf(const SinfoOptions& options) {
  if (!options.format.empty()) return {options.format, options.long_format};
  if (options.summary) return {kSummary, true};
  if (options.reasons) return {kReasons, true};
  if (options.by_node) return {options.long_list ? kByNodeLong : kByNode, true};
  return {options.long_list ? kLong : kUsual, true};
}

bool IsShown(const NodeRecord& node, const SinfoOptions& options) {
  const bool answers = node.state != "down*";
  if ((options.responding && !answers) || (options.dead && answers)) return false;
  if (options.reasons && node.reason.empty()) return false;
  if (!options.partitions.empty() && options.partitions.count(kPartition) == 0) return false;
  if (!options.nodes.empty() && options.nodes.count(node.name) == 0) return false;
  return options.states.empty() || options.states.count(node.state) != 0;
}

size_t StateOrder(const NodeRecord& node) {
  for (size_t i = 0; i < std::size(kStates); ++i) {
    if (node.state == kStates[i].name) return i;
  }
  return std::size(kStates);
}

// The nodes of each line: those that are alike in all fields that do not sum them up.
std::vector<Group> GroupsOf(const std::vector<NodeRecord>& nodes,
                            const std::vector<Column>& columns, const SinfoOptions& options) {
  std::vector<Group> groups;
  std::map<std::vector<std::string>, size_t> index;
  for (const NodeRecord& node : nodes) {
    if (!IsShown(node, options)) continue;
    if (options.by_node) {
      groups.push_back({&node});
      continue;
    }
    std::vector<std::string> key;
    for (const Column& column : columns) {
      if (!column.field->sums) key.push_back(column.field->value({&node}));
    }
    const auto [found, is_new] = index.emplace(std::move(key), groups.size());
    if (is_new) groups.emplace_back();
    groups[found->second].push_back(&node);
  }
  if (!options.by_node) {
    std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
      return StateOrder(*a[0]) < StateOrder(*b[0]);
    });
  }
  return groups;
}

std::string Line(const std::string& prefix, const std::vector<Column>& columns,
                 const Group& nodes) {
  std::string line = prefix;
  for (const auto& [layout, field] : columns) {
    const std::string text = nodes.empty() ? field->header : EscapeControl(field->value(nodes));
    const bool cuts = std::string(field->name) != "nodelist";
    absl::StrAppend(&line, Field(text, layout.width, layout.right, cuts), layout.suffix);
  }
  return line + "\n";
}

std::string Json(const std::vector<NodeRecord>& nodes, const SinfoOptions& options) {
  nlohmann::json all = nlohmann::json::array();
  for (const NodeRecord& node : nodes) {
    if (!IsShown(node, options)) continue;
    all.push_back({{"name", node.name},
                   {"hostname", node.name},
                   {"state", {absl::AsciiStrToUpper(node.state.substr(0, node.state.find('*')))}},
                   {"reason", node.reason},
                   {"cpus", node.cpus},
                   {"alloc_cpus", node.cpus_in_use},
                   {"real_memory", node.memory >> 20},
                   {"alloc_memory", node.memory_in_use >> 20},
                   {"gres", node.gpus == 0 ? "" : Gres(node.gpus)},
                   {"gres_used", node.gpus == 0 ? "" : Gres(node.gpus_in_use)},
                   {"features", absl::StrJoin(node.features, ",")},
                   {"partitions", {kPartition}}});
  }
  return nlohmann::json{{"nodes", std::move(all)}}.dump(2) + "\n";
}

}  // namespace

std::vector<NodeRecord> NodesOf(const v1::ListNodesReply& nodes) {
  std::vector<NodeRecord> records;
  for (const v1::ClusterNodeStatus& node : nodes.nodes()) records.push_back(RecordOf(node));
  std::sort(records.begin(), records.end(), [](const NodeRecord& a, const NodeRecord& b) {
    return std::make_pair(Pieces(a.name), a.name) < std::make_pair(Pieces(b.name), b.name);
  });
  return records;
}

std::string CompactNodeState(absl::string_view state) {
  for (const State& one : kStates) {
    if (one.name == state) return one.compact;
  }
  return std::string(state);
}

absl::StatusOr<SinfoOptions> ReadSinfo(const std::vector<std::string>& arguments,
                                       const std::map<std::string, std::string>& environment) {
  ASSIGN_OR_RETURN(const ParsedOptions parsed,
                   ParseOptions(arguments, Table(), AfterFirstWord::kOptionsToo));
  SinfoOptions options;
  for (const GivenOption& given : parsed.options) RETURN_IF_ERROR(TakeOption(given, &options));
  if (!parsed.rest.empty()) {
    return Error(absl::StrCat("Unrecognized option: ", OneLine(parsed.rest[0], 64)));
  }
  const auto format = environment.find("SINFO_FORMAT");
  const bool chosen = options.long_list || options.by_node || options.reasons || options.summary;
  if (options.format.empty() && !chosen && format != environment.end()) {
    options.format = format->second;
  }
  const auto partition = environment.find("SINFO_PARTITION");
  if (options.partitions.empty() && partition != environment.end()) {
    for (std::string& one : ItemsOf(partition->second)) options.partitions.insert(std::move(one));
  }
  return options;
}

absl::StatusOr<std::string> SinfoText(const std::vector<NodeRecord>& nodes,
                                      const SinfoOptions& options, const TextSurroundings& at) {
  if (options.json) return Json(nodes, options);
  const auto [format_text, by_name] = FormatOf(options);
  const ColumnFormat format =
      by_name ? ParseNameFormat(format_text) : ParseLetterFormat(format_text);
  ASSIGN_OR_RETURN(std::vector<Column> columns, ColumnsOf(format, by_name));
  const std::vector<Group> groups = GroupsOf(nodes, columns, options);
  // The first column of -N is as wide as the longest name.
  if (options.by_node && options.format.empty()) {
    columns[0].layout.width = std::string(columns[0].field->header).size();
    for (const Group& group : groups) {
      columns[0].layout.width = std::max(columns[0].layout.width, group[0]->name.size());
    }
  }
  std::string text;
  if (options.header && (options.long_list || options.every_seconds != 0)) {
    text = absl::FormatTime("%a %b %e %H:%M:%S %Y\n", at.now, at.zone);
  }
  if (options.header) text += Line(format.prefix, columns, {});
  for (const Group& group : groups) text += Line(format.prefix, columns, group);
  return text;
}

std::string SinfoHelp() {
  return "Usage: sinfo [OPTIONS]\n"
         "Shows the nodes of a cluster of Cadre, as Slurm's sinfo does. They are one partition.\n"
         "\n"
         "  -N, --Node              a line for each node; -l, --long: more\n"
         "  -n, --nodes=HOSTS       only these nodes\n"
         "  -t, --states=STATES     only nodes in these states: idle, mix, alloc, drain, down, "
         "...\n"
         "  -R, --list-reasons      nodes that take no work, and why\n"
         "  -s, --summarize         one line\n"
         "  -o, --format=FORMAT     %N node list, %D nodes, %T or %t state, %P partition, %c "
         "CPUs,\n"
         "                          %C CPUs by use, %m memory, %G GPUs, %f features, %E reason, "
         "...\n"
         "  -O, --Format=FIELDS     by name: NodeList,StateLong,CPUs:6,Gres,...\n"
         "  -i, --iterate=SECONDS   again and again\n"
         "  -h, --noheader          without the first line\n"
         "      --json              as JSON\n";
}

}  // namespace cadre::launcher
