#include "launcher/slurm/squeue_text.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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

constexpr char kJobs[] =
    "jobarrayid:.18 ,partition:.9 ,name:.8 ,username:.8 ,statecompact:.2 ,timeused:.10 "
    ",numnodes:.6 ,reasonlist:0";
constexpr char kLongJobs[] =
    "jobarrayid:.18 ,partition:.9 ,name:.8 ,username:.8 ,state:.8 ,timeused:.10 ,timelimit:.9 "
    ",numnodes:.6 ,reasonlist:0";
constexpr char kStarts[] = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R";
constexpr char kSteps[] =
    "stepid:.15 ,stepname:.8 ,partition:.9 ,username:.8 ,timeused:.9 ,nodes:0";

absl::Status Error(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("error: ", text));
}

const std::vector<Option>& Table() {
  constexpr OptionValue kNo = OptionValue::kNone, kYes = OptionValue::kRequired,
                        kMaybe = OptionValue::kOptional;
  static const auto* const table = new std::vector<Option>{
      {"account", 'A', kYes},     {"accounts", 'A', kYes},  {"all", 'a', kNo},
      {"array", 'r', kNo},        {"cluster", 'M', kYes},   {"clusters", 'M', kYes},
      {"federation", '\0', kNo},  {"format", 'o', kYes},    {"Format", 'O', kYes},
      {"help", '\0', kNo},        {"hide", '\0', kNo},      {"iterate", 'i', kYes},
      {"jobs", 'j', kMaybe},      {"json", '\0', kNo},      {"licenses", 'L', kYes},
      {"local", '\0', kNo},       {"long", 'l', kNo},       {"me", '\0', kNo},
      {"name", 'n', kYes},        {"noconvert", '\0', kNo}, {"node", '\0', kYes},
      {"nodelist", 'w', kYes},    {"nodes", '\0', kYes},    {"noheader", 'h', kNo},
      {"partitions", 'p', kYes},  {"priority", 'P', kNo},   {"qos", 'q', kYes},
      {"reservation", 'R', kYes}, {"sib", '\0', kNo},       {"sibling", '\0', kNo},
      {"sort", 'S', kYes},        {"start", '\0', kNo},     {"states", 't', kYes},
      {"steps", 's', kMaybe},     {"usage", '\0', kNo},     {"user", 'u', kYes},
      {"users", 'u', kYes},       {"verbose", 'v', kNo},    {"version", 'V', kNo},
  };
  return *table;
}

absl::Status AddStates(absl::string_view list, SqueueOptions* options) {
  for (const std::string& item : ItemsOf(list)) {
    if (absl::EqualsIgnoreCase(item, "all")) {
      // A state that no record has stands for all of them.
      options->selection.states = {"all"};
      return absl::OkStatus();
    }
    const absl::StatusOr<std::string> state = ParseState(item);
    if (!state.ok()) return Error(state.status().message());
    options->selection.states.insert(*state);
  }
  return absl::OkStatus();
}

absl::Status AddIds(absl::string_view list, SqueueOptions* options) {
  const absl::StatusOr<std::vector<WantedId>> wanted = ParseWantedIds(list);
  if (!wanted.ok()) return Error(wanted.status().message());
  for (const WantedId& id : *wanted) options->selection.ids.insert(id.Text());
  return absl::OkStatus();
}

void AddTo(absl::string_view list, std::set<std::string>* to) {
  for (std::string& item : ItemsOf(list)) to->insert(std::move(item));
}

absl::Status TakeOption(const GivenOption& given, SqueueOptions* options) {
  const std::string& name = given.name;
  if (name == "help" || name == "usage") options->answer = SqueueOptions::Answer::kHelp;
  if (name == "version") options->answer = SqueueOptions::Answer::kVersion;
  if (name == "me") options->me = true;
  if (name == "noheader") options->header = false;
  if (name == "long") options->long_list = true;
  if (name == "array") options->array_elements = true;
  if (name == "json") options->json = true;
  if (name == "sort") options->sort = given.value;
  if (name == "steps") {
    options->steps = true;
    return AddIds(given.value, options);
  }
  if (name == "jobs") return AddIds(given.value, options);
  if (name == "states") return AddStates(given.value, options);
  if (name == "name") AddTo(given.value, &options->selection.names);
  if (name == "partitions") AddTo(given.value, &options->selection.partitions);
  if (name == "user" || name == "users") {
    for (std::string& user : ItemsOf(given.value)) options->users.push_back(std::move(user));
  }
  if (name == "node" || name == "nodes" || name == "nodelist") {
    const auto nodes = ExpandHosts(given.value);
    if (!nodes.ok()) {
      return Error(absl::StrCat("'", given.value, "' invalid entry for --nodelist"));
    }
    options->selection.nodes.insert(nodes->begin(), nodes->end());
  }
  if (name == "format" || name == "Format") {
    if (!options->format.empty() && options->long_format != (name == "Format")) {
      return Error("-O (--Format) is incompatible with -o (--format)");
    }
    options->format = given.value;
    options->long_format = name == "Format";
  }
  if (name == "start" && options->format.empty()) options->format = kStarts;
  if (name == "iterate") {
    const absl::StatusOr<uint32_t> seconds = ParseSlurmCount(given.value, 1);
    if (!seconds.ok()) return Error(absl::StrCat("--iterate=", given.value));
    options->every_seconds = *seconds;
  }
  return absl::OkStatus();
}

std::string Lookup(const std::map<std::string, std::string>& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

// What the command line does not say.
absl::Status TakeEnvironment(const std::map<std::string, std::string>& environment,
                             SqueueOptions* options) {
  JobSelection& selection = options->selection;
  if (options->format.empty() && !options->long_list && !options->steps) {
    options->format = Lookup(environment, "SQUEUE_FORMAT");
    if (options->format.empty()) {
      options->format = Lookup(environment, "SQUEUE_FORMAT2");
      options->long_format = !options->format.empty();
    }
  }
  if (options->sort.empty()) options->sort = Lookup(environment, "SQUEUE_SORT");
  if (selection.names.empty()) AddTo(Lookup(environment, "SQUEUE_NAMES"), &selection.names);
  if (selection.partitions.empty()) {
    AddTo(Lookup(environment, "SQUEUE_PARTITION"), &selection.partitions);
  }
  if (options->users.empty() && !options->me) {
    options->users = ItemsOf(Lookup(environment, "SQUEUE_USERS"));
  }
  const auto array = environment.find("SQUEUE_ARRAY");
  if (array != environment.end()) options->array_elements = true;
  if (selection.states.empty()) return AddStates(Lookup(environment, "SQUEUE_STATES"), options);
  return absl::OkStatus();
}

// --- fields ---

using Value = std::string (*)(const JobRecord& job, const TextSurroundings& at);

struct SqueueField {
  // Of -o; '\0': there is none.
  char letter;
  // Of -O.
  const char* name;
  const char* header;
  Value value;
  bool cuts = true;
};

std::string Time(absl::Time time, const TextSurroundings& at) {
  return TimeText(time, at.zone, at.time_format, "N/A");
}

std::string EndTime(const JobRecord& job, const TextSurroundings& at) {
  if (job.ended != absl::InfinitePast() || job.began == absl::InfinitePast() ||
      job.limit == absl::InfiniteDuration()) {
    return Time(job.ended, at);
  }
  return Time(job.began + job.limit, at);
}

std::string TimeLeft(const JobRecord& job, const TextSurroundings& at) {
  if (job.limit == absl::InfiniteDuration()) return "UNLIMITED";
  return ShortTime(std::max(job.limit - job.Elapsed(at.now), absl::ZeroDuration()));
}

// "(Resources)" of a job that waits or failed, else its nodes.
std::string NodesOrReason(const JobRecord& job, const TextSurroundings&) {
  const bool reason = job.IsPending() || job.state == "FAILED" || job.state == "TIMEOUT" ||
                      job.state == "OUT_OF_MEMORY" || job.state == "DEADLINE";
  return reason ? absl::StrCat("(", job.reason, ")") : job.NodeList();
}

std::string Gres(const JobRecord& job, const TextSurroundings&) {
  const uint32_t nodes = std::max(job.node_count, 1u);
  return job.gpus == 0 ? "N/A" : absl::StrCat("gres/gpu:", job.gpus / nodes);
}

std::string MinMemory(const JobRecord& job, const TextSurroundings&) {
  return absl::StrCat((job.memory / std::max(job.node_count, 1u)) >> 20, "M");
}

std::string OrNull(const std::string& text) { return text.empty() ? "(null)" : text; }

// "3", or "3-9%2" of several that wait.
std::string ArrayTask(const JobRecord& job, const TextSurroundings&) {
  if (job.array == 0) return "N/A";
  if (job.indices.empty()) return absl::StrCat(job.array_index);
  return absl::StrCat(job.indices,
                      job.array_at_once == 0 ? "" : absl::StrCat("%", job.array_at_once));
}

const std::vector<SqueueField>& Fields() {
  using Job = const JobRecord&;
  using At = const TextSurroundings&;
  const Value none = [](Job, At) -> std::string { return "(null)"; };
  const Value not_known = [](Job, At) -> std::string { return "N/A"; };
  const Value id = [](Job job, At) { return job.Id(); };
  static const auto* const fields = new std::vector<SqueueField>{
      {'i', "jobarrayid", "JOBID", id},
      {'A', "jobid", "JOBID", [](Job job, At) { return absl::StrCat(job.id); }},
      {'F', "arrayjobid", "ARRAY_JOB_ID",
       [](Job job, At) { return absl::StrCat(job.array == 0 ? job.id : job.array); }},
      {'K', "arraytaskid", "ARRAY_TASK_ID", ArrayTask},
      {'\0', "stepid", "STEPID", id},
      {'j', "name", "NAME", [](Job job, At) { return job.name; }},
      {'\0', "stepname", "NAME", [](Job job, At) { return job.name; }},
      {'u', "username", "USER", [](Job job, At) { return job.user; }},
      {'U', "userid", "UID",
       [](Job job, At at) {
         const std::optional<uint32_t> uid = at.uid_of ? at.uid_of(job.user) : std::nullopt;
         return uid.has_value() ? absl::StrCat(*uid) : job.user;
       }},
      {'g', "groupname", "GROUP", not_known},
      {'t', "statecompact", "ST", [](Job job, At) { return CompactState(job.state); }},
      {'T', "state", "STATE", [](Job job, At) { return job.state; }},
      {'M', "timeused", "TIME", [](Job job, At at) { return ShortTime(job.Elapsed(at.now)); },
       false},
      {'l', "timelimit", "TIME_LIMIT", [](Job job, At) { return ShortTime(job.limit); }, false},
      {'L', "timeleft", "TIME_LEFT", TimeLeft, false},
      {'D', "numnodes", "NODES",
       [](Job job, At) { return absl::StrCat(std::max(job.node_count, 1u)); }},
      {'N', "nodelist", "NODELIST", [](Job job, At) { return job.NodeList(); }, false},
      {'\0', "nodes", "NODELIST", [](Job job, At) { return job.NodeList(); }, false},
      {'R', "reasonlist", "NODELIST(REASON)", NodesOrReason, false},
      {'r', "reason", "REASON", [](Job job, At) { return job.reason; }},
      {'P', "partition", "PARTITION", [](Job, At) -> std::string { return kPartition; }},
      {'S', "starttime", "START_TIME", [](Job job, At at) { return Time(job.Start(), at); }},
      {'e', "endtime", "END_TIME", EndTime},
      {'V', "submittime", "SUBMIT_TIME", [](Job job, At at) { return Time(job.submitted, at); }},
      {'\0', "eligibletime", "ELIGIBLE_TIME",
       [](Job job, At at) { return Time(job.Eligible(), at); }},
      {'\0', "deadline", "DEADLINE", [](Job job, At at) { return Time(job.deadline, at); }},
      {'\0', "pendingtime", "PENDING_TIME",
       [](Job job, At at) {
         const absl::Time until = job.began == absl::InfinitePast() ? at.now : job.began;
         const bool known = job.submitted != absl::InfinitePast();
         return absl::StrCat(known ? absl::ToInt64Seconds(until - job.submitted) : 0);
       }},
      {'Q', "prioritylong", "PRIORITY", [](Job job, At) { return absl::StrCat(job.priority); }},
      {'p', "priority", "PRIORITY", [](Job job, At) { return absl::StrCat(job.priority); }},
      {'C', "numcpus", "CPUS", [](Job job, At) { return absl::StrCat(std::max(job.cpus, 1u)); }},
      {'\0', "numtasks", "TASKS",
       [](Job job, At) { return absl::StrCat(std::max(job.tasks, 1u)); }},
      {'B', "batchhost", "EXEC_HOST",
       [](Job job, At) { return job.nodes.empty() ? "n/a" : job.nodes[0]; }},
      {'m', "minmemory", "MIN_MEMORY", MinMemory},
      {'b', "tres-per-node", "TRES_PER_NODE", Gres},
      {'\0', "gres", "TRES_PER_NODE", Gres},
      {'a', "account", "ACCOUNT", none},
      {'q', "qos", "QOS", [](Job, At) -> std::string { return "normal"; }},
      {'v', "reservation", "RESERVATION", none},
      {'k', "comment", "COMMENT", none},
      {'E', "dependency", "DEPENDENCY", [](Job job, At) { return OrNull(job.dependency); }},
      {'f', "feature", "FEATURES", [](Job job, At) { return OrNull(job.features); }},
      {'n', "reqnodes", "REQ_NODES", [](Job job, At) { return job.wanted_nodes; }},
      {'x', "excnodes", "EXC_NODES", [](Job job, At) { return job.excluded_nodes; }},
      {'h', "oversubscribe", "OVER_SUBSCRIBE", [](Job, At) -> std::string { return "OK"; }},
      {'w', "wckey", "WCKEY", none},
      {'W', "licenses", "LICENSES", none},
      {'y', "nice", "NICE", [](Job, At) -> std::string { return "0"; }},
      {'Y', "schednodes", "SCHEDNODES", none, false},
      {'o', "command", "COMMAND", [](Job job, At) { return OrNull(job.command); }},
      {'Z', "workdir", "WORK_DIR", [](Job job, At) { return OrNull(job.working_dir); }},
      {'\0', "cluster", "CLUSTER", [](Job, At) -> std::string { return "cadre"; }},
      {'\0', "restartcnt", "RESTART_COUNT", [](Job job, At) { return absl::StrCat(job.restarts); }},
      {'\0', "exit_code", "EXIT_CODE", [](Job job, At) { return absl::StrCat(job.exit_code); }},
  };
  return *fields;
}

struct Column {
  ColumnOfFormat layout;
  const SqueueField* field;
};

// The columns of the format. `by_name`: its fields have names, not letters.
absl::StatusOr<std::vector<Column>> ColumnsOf(const ColumnFormat& format, bool by_name) {
  std::vector<Column> columns;
  for (const ColumnOfFormat& layout : format.columns) {
    const SqueueField* found = nullptr;
    std::vector<std::string> names;
    for (const SqueueField& field : Fields()) {
      const bool fits = by_name ? layout.field == field.name
                                : layout.field == absl::string_view(&field.letter, 1);
      if (fits && (by_name || field.letter != '\0')) found = &field;
      if (by_name) names.push_back(field.name);
    }
    if (found == nullptr) {
      const std::string meant = Nearest(layout.field, names);
      return Error(absl::StrCat("Invalid job format specification: ",
                                OneLine(absl::StrCat(layout.field, layout.suffix), 64),
                                meant.empty() ? "" : absl::StrCat("; did you mean ", meant, "?")));
    }
    columns.push_back({layout, found});
  }
  return columns;
}

// The format that the options ask for, and whether its fields have names.
std::pair<std::string, bool> FormatOf(const SqueueOptions& options) {
  if (!options.format.empty()) return {options.format, options.long_format};
  return {options.steps ? kSteps : options.long_list ? kLongJobs : kJobs, true};
}

// The header if `job` is null.
std::string Row(const std::string& prefix, const std::vector<Column>& columns, const JobRecord* job,
                const TextSurroundings& at) {
  std::string line = prefix;
  for (const auto& [layout, field] : columns) {
    const std::string text = job == nullptr ? field->header : EscapeControl(field->value(*job, at));
    absl::StrAppend(&line, Field(text, layout.width, layout.right, job == nullptr || field->cuts),
                    layout.suffix);
  }
  return line + "\n";
}

// --- order ---

int StateOrder(const JobRecord& job) {
  return job.IsPending() ? 0 : job.state == "RUNNING" ? 1 : job.state == "COMPLETING" ? 3 : 2;
}

// Negative: `a` comes first by this key.
int Compare(char key, const JobRecord& a, const JobRecord& b) {
  const auto order = [](const auto& x, const auto& y) { return x < y ? -1 : y < x ? 1 : 0; };
  switch (key) {
    case 'j':
      return order(a.name, b.name);
    case 'u':
    case 'U':
      return order(a.user, b.user);
    case 't':
    case 'T':
      return order(StateOrder(a), StateOrder(b));
    case 'p':
    case 'Q':
      return order(a.priority, b.priority);
    case 'D':
      return order(a.node_count, b.node_count);
    case 'N':
      return order(a.NodeList(), b.NodeList());
    case 'S':
      return order(a.Start(), b.Start());
    case 'M':
      return order(a.began, b.began);
    case 'V':
      return order(a.submitted, b.submitted);
    case 'l':
      return order(a.limit, b.limit);
    case 'P':
      return 0;
    default:
      return order(a.server_id, b.server_id);
  }
}

void Sort(absl::string_view keys, std::vector<JobRecord>* records) {
  std::vector<std::pair<char, bool>> order;
  bool descending = false;
  for (const char c : keys) {
    if (c == '-' || c == '+') {
      descending = c == '-';
    } else if (absl::ascii_isalpha(c)) {
      order.emplace_back(c, descending);
      descending = false;
    }
  }
  std::stable_sort(records->begin(), records->end(),
                   [&order](const JobRecord& a, const JobRecord& b) {
                     for (const auto& [key, reversed] : order) {
                       const int compared = reversed ? Compare(key, b, a) : Compare(key, a, b);
                       if (compared != 0) return compared < 0;
                     }
                     return false;
                   });
}

bool IsShown(const JobRecord& job, const SqueueOptions& options) {
  if (job.step.has_value() != options.steps) return false;
  JobSelection selection = options.selection;
  const bool all = selection.states.count("all") != 0;
  if (all) selection.states.clear();
  if (!all && selection.states.empty() && job.HasEnded()) return false;
  return selection.Selects(job);
}

int64_t UnixSeconds(absl::Time time) {
  return time == absl::InfinitePast() ? 0 : absl::ToUnixSeconds(time);
}

std::string Json(const std::vector<JobRecord>& jobs) {
  nlohmann::json all = nlohmann::json::array();
  for (const JobRecord& job : jobs) {
    const bool limited = job.limit != absl::InfiniteDuration();
    all.push_back({{"job_id", job.id},
                   {"job_state", job.state},
                   {"state_reason", job.reason},
                   {"state_description", job.reason_text},
                   {"name", job.name},
                   {"user_name", job.user},
                   {"partition", kPartition},
                   {"account", ""},
                   {"nodes", job.NodeList()},
                   {"batch_host", job.nodes.empty() ? "" : job.nodes[0]},
                   {"node_count", job.node_count},
                   {"cpus", job.cpus},
                   {"tasks", job.tasks},
                   {"priority", job.priority},
                   {"restart_cnt", job.restarts},
                   {"exit_code", job.exit_code * 256 + job.exit_signal},
                   {"submit_time", UnixSeconds(job.submitted)},
                   {"start_time", UnixSeconds(job.Start())},
                   {"end_time", UnixSeconds(job.ended)},
                   {"eligible_time", UnixSeconds(job.Eligible())},
                   {"deadline", UnixSeconds(job.deadline)},
                   {"hold", job.held},
                   {"requeue", job.requeues},
                   {"batch_flag", job.batch},
                   {"dependency", job.dependency},
                   {"required_nodes", job.wanted_nodes},
                   {"excluded_nodes", job.excluded_nodes},
                   {"features", job.features},
                   {"command", job.command},
                   {"current_working_directory", job.working_dir},
                   {"standard_output", OutputFile(job)},
                   {"standard_error", ErrorFile(job)},
                   {"time_limit", limited ? nlohmann::json(absl::ToInt64Minutes(job.limit))
                                          : nlohmann::json(nullptr)}});
    if (job.step.has_value()) all.back()["step_id"] = job.Id();
    if (job.array != 0) {
      all.back()["array_job_id"] = job.array;
      all.back()["array_task_id"] =
          job.indices.empty() ? nlohmann::json(job.array_index) : nlohmann::json(nullptr);
      all.back()["array_task_string"] = job.indices;
      all.back()["array_max_tasks"] = job.array_at_once;
    }
  }
  return nlohmann::json{{"jobs", std::move(all)}}.dump(2) + "\n";
}

}  // namespace

absl::StatusOr<SqueueOptions> ReadSqueue(const std::vector<std::string>& arguments,
                                         const std::map<std::string, std::string>& environment) {
  ASSIGN_OR_RETURN(const ParsedOptions parsed,
                   ParseOptions(arguments, Table(), AfterFirstWord::kOptionsToo));
  SqueueOptions options;
  for (const GivenOption& given : parsed.options) RETURN_IF_ERROR(TakeOption(given, &options));
  // "-j 57": the value of an option that need not have one is a word of its own.
  const bool takes_ids =
      FindOption(parsed, "jobs") != nullptr || FindOption(parsed, "steps") != nullptr;
  if (parsed.rest.size() > (takes_ids ? 1u : 0u)) {
    return Error(absl::StrCat("Unrecognized option: ", OneLine(parsed.rest.back(), 64)));
  }
  for (const std::string& ids : parsed.rest) RETURN_IF_ERROR(AddIds(ids, &options));
  if (FindOption(parsed, "start") != nullptr && options.selection.states.empty()) {
    options.selection.states = {"PENDING"};
  }
  if (options.long_list && !options.format.empty()) {
    return absl::InvalidArgumentError(
        "fatal: Options -o(--format) and -l(--long) are mutually exclusive. Please remove one and "
        "retry.");
  }
  RETURN_IF_ERROR(TakeEnvironment(environment, &options));
  return options;
}

absl::StatusOr<std::string> SqueueText(const std::vector<JobRecord>& records,
                                       const SqueueOptions& options, const TextSurroundings& at) {
  std::vector<JobRecord> shown;
  for (const JobRecord& record : records) {
    if (IsShown(record, options)) shown.push_back(record);
  }
  if (!options.array_elements) shown = WithArraysCollapsed(std::move(shown));
  // Slurm's order: by state, then the highest priority first.
  Sort(options.sort.empty() ? "t,-p,S,i" : options.sort, &shown);
  if (options.json) return Json(shown);
  const auto [format_text, by_name] = FormatOf(options);
  const ColumnFormat format =
      by_name ? ParseNameFormat(format_text) : ParseLetterFormat(format_text);
  ASSIGN_OR_RETURN(const std::vector<Column> columns, ColumnsOf(format, by_name));
  std::string text;
  if (options.header && (options.long_list || options.every_seconds != 0)) {
    text = absl::FormatTime("%a %b %e %H:%M:%S %Y\n", at.now, at.zone);
  }
  if (options.header) text += Row(format.prefix, columns, nullptr, at);
  for (const JobRecord& job : shown) text += Row(format.prefix, columns, &job, at);
  return text;
}

std::string SqueueHelp() {
  return "Usage: squeue [OPTIONS]\n"
         "Shows the jobs that wait or run in a cluster of Cadre, as Slurm's squeue does.\n"
         "\n"
         "  -j, --jobs=IDS          only these jobs\n"
         "  -u, --user=NAMES        only jobs of these users; --me: only your own\n"
         "  -n, --name=NAMES        only jobs of these names\n"
         "  -t, --states=STATES     only jobs in these states: PENDING, R, all, ... [those that\n"
         "                          have not ended]\n"
         "  -w, --nodelist=HOSTS    only jobs on these nodes\n"
         "  -s, --steps             steps of batch jobs, not jobs\n"
         "  -r, --array             a line for each element of an array that waits\n"
         "  -o, --format=FORMAT     %i id, %j name, %u user, %t or %T state, %M time, %l limit,\n"
         "                          %L time left, %D nodes, %N node list, %R nodes or reason,\n"
         "                          %S start, %e end, %V submission, %C CPUs, %Q priority, ...;\n"
         "                          %.8j is 8 columns wide, to the right\n"
         "  -O, --Format=FIELDS     by name: JobID,Name:30,State,TimeUsed,NodeList,Reason,...\n"
         "  -l, --long              with the time limit; --start: with the expected start\n"
         "  -S, --sort=FIELDS       order, by the letters of -o; -i: descending\n"
         "  -i, --iterate=SECONDS   again and again\n"
         "  -h, --noheader          without the first line\n"
         "      --json              as JSON\n";
}

}  // namespace cadre::launcher
