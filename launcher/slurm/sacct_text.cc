#include "launcher/slurm/sacct_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/civil_time.h"
#include "base/host_ranges.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/flags/nearest.h"
#include "launcher/slurm/column_format.h"
#include "launcher/slurm/option_parser.h"
#include "launcher/spec/queue_values.h"
#include "nlohmann/json.hpp"

namespace cadre::launcher {
namespace {

constexpr char kDefaultFields[] = "jobid,jobname,partition,account,alloccpus,state,exitcode";
constexpr char kBriefFields[] = "jobid,state,exitcode";
constexpr char kLongFields[] =
    "jobid,jobidraw,jobname,partition,ntasks,alloccpus,elapsed,state,exitcode,reqmem,alloctres";

absl::Status Error(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("error: ", text));
}

const std::vector<Option>& Table() {
  constexpr OptionValue kNo = OptionValue::kNone, kYes = OptionValue::kRequired,
                        kMaybe = OptionValue::kOptional;
  static const auto* const table = new std::vector<Option>{
      {"accounts", 'A', kYes},
      {"allclusters", 'L', kNo},
      {"allocations", 'X', kNo},
      {"allusers", 'a', kNo},
      {"array", '\0', kNo},
      {"associations", 'x', kYes},
      {"batch-script", 'B', kNo},
      {"brief", 'b', kNo},
      {"cluster", 'M', kYes},
      {"clusters", 'M', kYes},
      {"completion", 'c', kNo},
      {"constraints", 'C', kYes},
      {"delimiter", '\0', kYes},
      {"duplicates", 'D', kNo},
      {"endtime", 'E', kYes},
      {"env-vars", '\0', kNo},
      {"federation", '\0', kNo},
      {"fields", 'o', kYes},
      {"file", 'f', kYes},
      {"flags", 'F', kYes},
      {"format", 'o', kYes},
      {"gid", 'g', kYes},
      {"group", 'g', kYes},
      {"help", 'h', kNo},
      {"help-fields", 'e', kNo},
      {"helpformat", 'e', kNo},
      {"jobs", 'j', kYes},
      {"json", '\0', kNo},
      {"local", '\0', kNo},
      {"long", 'l', kNo},
      {"name", '\0', kYes},
      {"ncpus", 'I', kYes},
      {"nnodes", 'i', kYes},
      {"nodelist", 'N', kYes},
      {"noconvert", '\0', kNo},
      {"noheader", 'n', kNo},
      {"parsable", 'p', kNo},
      {"parsable2", 'P', kNo},
      {"partition", 'r', kYes},
      {"qos", 'q', kYes},
      {"reason", 'R', kYes},
      {"starttime", 'S', kYes},
      {"state", 's', kYes},
      {"timelimit-max", 'K', kYes},
      {"timelimit-min", 'k', kYes},
      {"truncate", 'T', kNo},
      {"uid", 'u', kYes},
      {"units", '\0', kYes},
      {"usage", 'U', kNo},
      {"use-local-uid", '\0', kNo},
      {"user", 'u', kYes},
      {"verbose", 'v', kNo},
      {"version", 'V', kNo},
      {"wckeys", 'W', kYes},
      {"whole-hetjob", '\0', kMaybe},
  };
  return *table;
}

// Options that select by what jobs of Cadre do not have.
constexpr const char* kRefused[] = {
    "accounts", "associations", "batch-script",  "completion",    "constraints", "env-vars",
    "file",     "flags",        "gid",           "group",         "ncpus",       "nnodes",
    "qos",      "reason",       "timelimit-max", "timelimit-min", "wckeys"};

absl::Status AddIds(absl::string_view list, SacctOptions* options) {
  const absl::StatusOr<std::vector<WantedId>> wanted = ParseWantedIds(list);
  if (!wanted.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("fatal: Bad job/step specified: ", OneLine(list, 64)));
  }
  for (const WantedId& id : *wanted) options->selection.ids.insert(id.Text());
  return absl::OkStatus();
}

absl::Status TakeSelection(const GivenOption& given, SacctOptions* options) {
  JobSelection& selection = options->selection;
  if (given.name == "jobs") return AddIds(given.value, options);
  if (given.name == "user" || given.name == "uid") {
    for (std::string& user : ItemsOf(given.value)) options->users.push_back(std::move(user));
  }
  if (given.name == "name") {
    for (std::string& name : ItemsOf(given.value)) selection.names.insert(std::move(name));
  }
  if (given.name == "partition") {
    for (std::string& name : ItemsOf(given.value)) selection.partitions.insert(std::move(name));
  }
  if (given.name == "nodelist") {
    const auto nodes = ExpandHosts(given.value);
    if (!nodes.ok()) return Error(nodes.status().message());
    selection.nodes.insert(nodes->begin(), nodes->end());
  }
  if (given.name == "state") {
    for (const std::string& item : ItemsOf(given.value)) {
      const absl::StatusOr<std::string> state = ParseState(item);
      if (!state.ok()) return Error(state.status().message());
      selection.states.insert(*state);
    }
  }
  return absl::OkStatus();
}

absl::Status TakeOption(const GivenOption& given, absl::Time now, absl::TimeZone zone,
                        SacctOptions* options) {
  const std::string& name = given.name;
  for (const char* const refused : kRefused) {
    if (name == refused) return Error(absl::StrCat(given.place, ": not yet"));
  }
  if (name == "help" || name == "usage") options->answer = SacctOptions::Answer::kHelp;
  if (name == "helpformat" || name == "help-fields") {
    options->answer = SacctOptions::Answer::kFields;
  }
  if (name == "version") options->answer = SacctOptions::Answer::kVersion;
  if (name == "allusers") options->all_users = true;
  if (name == "allocations") options->allocations_only = true;
  if (name == "array") options->array_elements = true;
  if (name == "noheader") options->header = false;
  if (name == "json") options->json = true;
  if (name == "parsable" || name == "parsable2") {
    options->parsable = true;
    options->delimiter_at_end = name == "parsable";
  }
  if (name == "delimiter") options->delimiter = given.value;
  if (name == "brief") options->format = kBriefFields;
  if (name == "long") options->format = kLongFields;
  if (name == "format" || name == "fields") {
    absl::StrAppend(&options->format, options->format.empty() ? "" : ",", given.value);
  }
  if (name == "starttime" || name == "endtime") {
    const absl::StatusOr<absl::Time> time = ParseSlurmDate(given.value, now, zone);
    if (!time.ok()) return Error(absl::StrCat(given.place, ": ", time.status().message()));
    (name == "starttime" ? options->from : options->until) = *time;
  }
  return TakeSelection(given, options);
}

absl::Time Midnight(absl::Time now, absl::TimeZone zone) {
  return absl::FromCivil(absl::ToCivilDay(now, zone), zone);
}

// --- fields ---

// The batch script of a job is shown as a step of it.
struct SacctRow {
  const JobRecord* job;
  bool is_batch = false;

  bool IsStep() const { return is_batch || job->step.has_value(); }
};

using Value = std::string (*)(const SacctRow& row, const TextSurroundings& at);

struct SacctField {
  const char* name;
  // Negative: to the left.
  int width;
  // Null: it is always empty, as nothing is known about it.
  Value value;
};

std::string RowId(const SacctRow& row) {
  return row.is_batch ? absl::StrCat(row.job->Id(), ".batch") : row.job->Id();
}

std::string RawRowId(const SacctRow& row) {
  return row.is_batch ? absl::StrCat(row.job->id, ".batch") : row.job->RawId();
}

std::string StateOf(const JobRecord& job) {
  return job.state == "COMPLETING" ? "RUNNING" : job.state;
}

std::string NodeList(const SacctRow& row) {
  const JobRecord& job = *row.job;
  if (job.nodes.empty()) return "None assigned";
  return row.is_batch ? job.nodes[0] : job.NodeList();
}

std::string Nodes(const SacctRow& row) {
  return absl::StrCat(row.is_batch ? 1 : std::max(row.job->node_count, 1u));
}

// What the job asks for, or has.
std::string Tres(const SacctRow& row) {
  const JobRecord& job = *row.job;
  std::string text = absl::StrCat("cpu=", job.cpus);
  if (job.gpus > 0) absl::StrAppend(&text, ",gres/gpu=", job.gpus);
  if (job.memory > 0) absl::StrAppend(&text, ",mem=", job.memory >> 20, "M");
  return absl::StrCat(text, ",node=", Nodes(row));
}

std::string CpuTime(const SacctRow& row, const TextSurroundings& at) {
  return LongTime(row.job->Elapsed(at.now) * row.job->cpus);
}

std::string Time(absl::Time time, const TextSurroundings& at) {
  return TimeText(time, at.zone, at.time_format, "Unknown");
}

const std::vector<SacctField>& Fields() {
  using Row = const SacctRow&;
  using At = const TextSurroundings&;
  // Steps have no user, partition and limit of their own.
  static const auto* const fields = new std::vector<SacctField>{
      {"Account", 10, nullptr},
      {"AdminComment", 15, nullptr},
      {"AllocCPUS", 10,
       [](Row row, At) {
         return row.job->IsPending() ? std::string("0") : absl::StrCat(row.job->cpus);
       }},
      {"AllocNodes", 10, [](Row row, At) { return row.job->IsPending() ? "0" : Nodes(row); }},
      {"AllocTRES", 10,
       [](Row row, At) { return row.job->IsPending() ? std::string() : Tres(row); }},
      {"AssocID", 7, nullptr},
      {"AveCPU", 10, nullptr},
      {"AveCPUFreq", 10, nullptr},
      {"AveDiskRead", 14, nullptr},
      {"AveDiskWrite", 14, nullptr},
      {"AvePages", 10, nullptr},
      {"AveRSS", 10, nullptr},
      {"AveVMSize", 10, nullptr},
      {"BlockID", 16, nullptr},
      {"Cluster", 10, [](Row, At) -> std::string { return "cadre"; }},
      {"Comment", 14, nullptr},
      {"Constraints", 19,
       [](Row row, At) { return row.IsStep() ? std::string() : row.job->features; }},
      {"ConsumedEnergy", 14, nullptr},
      {"ConsumedEnergyRaw", 17, nullptr},
      {"Container", 19, nullptr},
      {"CPUTime", 10, CpuTime},
      {"CPUTimeRAW", 10,
       [](Row row, At at) {
         return absl::StrCat(absl::ToInt64Seconds(row.job->Elapsed(at.now)) * row.job->cpus);
       }},
      {"DBIndex", -10, nullptr},
      {"DerivedExitCode", 15, [](Row row, At) { return row.IsStep() ? "" : std::string("0:0"); }},
      {"Elapsed", 10, [](Row row, At at) { return LongTime(row.job->Elapsed(at.now)); }},
      {"ElapsedRaw", 10,
       [](Row row, At at) { return absl::StrCat(absl::ToInt64Seconds(row.job->Elapsed(at.now))); }},
      {"Eligible", 19,
       [](Row row, At at) { return row.IsStep() ? "" : Time(row.job->Eligible(), at); }},
      {"End", 19, [](Row row, At at) { return Time(row.job->ended, at); }},
      {"ExitCode", 8,
       [](Row row, At) { return absl::StrCat(row.job->exit_code, ":", row.job->exit_signal); }},
      {"Extra", 14, nullptr},
      {"FailedNode", 8, nullptr},
      {"Flags", 19, nullptr},
      {"GID", 6, nullptr},
      {"Group", 9, nullptr},
      {"JobID", -12, [](Row row, At) { return RowId(row); }},
      {"JobIDRaw", -12, [](Row row, At) { return RawRowId(row); }},
      {"JobName", 10, [](Row row, At) { return row.is_batch ? "batch" : row.job->name; }},
      {"Layout", 9, [](Row row, At) -> std::string { return row.IsStep() ? "Block" : ""; }},
      {"Licenses", 10, nullptr},
      {"MaxDiskRead", 12, nullptr},
      {"MaxDiskReadNode", 15, nullptr},
      {"MaxDiskReadTask", 15, nullptr},
      {"MaxDiskWrite", 12, nullptr},
      {"MaxDiskWriteNode", 16, nullptr},
      {"MaxDiskWriteTask", 16, nullptr},
      {"MaxPages", 8, nullptr},
      {"MaxPagesNode", 12, nullptr},
      {"MaxPagesTask", 14, nullptr},
      {"MaxRSS", 10, nullptr},
      {"MaxRSSNode", 10, nullptr},
      {"MaxRSSTask", 10, nullptr},
      {"MaxVMSize", 10, nullptr},
      {"MaxVMSizeNode", 14, nullptr},
      {"MaxVMSizeTask", 14, nullptr},
      {"McsLabel", 12, nullptr},
      {"MinCPU", 10, nullptr},
      {"MinCPUNode", 10, nullptr},
      {"MinCPUTask", 10, nullptr},
      {"NCPUS", 10, [](Row row, At) { return absl::StrCat(std::max(row.job->cpus, 1u)); }},
      {"NNodes", 8, [](Row row, At) { return Nodes(row); }},
      {"NodeList", 15, [](Row row, At) { return NodeList(row); }},
      {"NTasks", 8,
       [](Row row, At) {
         if (!row.IsStep()) return std::string();
         return row.is_batch ? std::string("1") : absl::StrCat(row.job->tasks);
       }},
      {"Partition", 10, [](Row row, At) -> std::string { return row.IsStep() ? "" : kPartition; }},
      {"Planned", 10,
       [](Row row, At at) {
         const absl::Time until = row.job->began == absl::InfinitePast() ? at.now : row.job->began;
         const bool known = !row.IsStep() && row.job->submitted != absl::InfinitePast();
         return known ? LongTime(until - row.job->submitted) : "";
       }},
      {"PlannedCPU", 10, nullptr},
      {"PlannedCPURAW", 13, nullptr},
      {"Priority", 10,
       [](Row row, At) { return row.IsStep() ? "" : absl::StrCat(row.job->priority); }},
      {"QOS", 10, [](Row row, At) -> std::string { return row.IsStep() ? "" : "normal"; }},
      {"QOSRAW", 6, nullptr},
      {"Reason", 22, [](Row row, At) { return row.IsStep() ? "" : row.job->reason; }},
      {"ReqCPUFreq", 10, nullptr},
      {"ReqCPUFreqGov", 13, nullptr},
      {"ReqCPUFreqMax", 13, nullptr},
      {"ReqCPUFreqMin", 13, nullptr},
      {"ReqCPUS", 8, [](Row row, At) { return absl::StrCat(std::max(row.job->cpus, 1u)); }},
      {"ReqMem", 10,
       [](Row row, At) {
         return row.IsStep() || row.job->memory == 0 ? ""
                                                     : absl::StrCat(row.job->memory >> 20, "M");
       }},
      {"ReqNodes", 8, [](Row row, At) { return Nodes(row); }},
      {"ReqTRES", 10, [](Row row, At) { return row.IsStep() ? "" : Tres(row); }},
      {"Reservation", 20, nullptr},
      {"ReservationId", 8, nullptr},
      {"Restarts", 8,
       [](Row row, At) { return row.IsStep() ? "" : absl::StrCat(row.job->restarts); }},
      {"Start", 19, [](Row row, At at) { return Time(row.job->began, at); }},
      {"State", 10, [](Row row, At) { return StateOf(*row.job); }},
      {"Submit", 19, [](Row row, At at) { return Time(row.job->submitted, at); }},
      {"SubmitLine", 20, nullptr},
      {"Suspended", 10, [](Row, At) -> std::string { return "00:00:00"; }},
      {"SystemComment", 15, nullptr},
      {"SystemCPU", 10, nullptr},
      {"Timelimit", 10, [](Row row, At) { return row.IsStep() ? "" : LongTime(row.job->limit); }},
      {"TimelimitRaw", 10,
       [](Row row, At) {
         if (row.IsStep()) return std::string();
         return row.job->limit == absl::InfiniteDuration()
                    ? "UNLIMITED"
                    : absl::StrCat(absl::ToInt64Minutes(row.job->limit));
       }},
      {"TotalCPU", 10, nullptr},
      {"TRESUsageInAve", 14, nullptr},
      {"TRESUsageInMax", 14, nullptr},
      {"TRESUsageInMaxNode", 18, nullptr},
      {"TRESUsageInMaxTask", 18, nullptr},
      {"TRESUsageInMin", 14, nullptr},
      {"TRESUsageInMinNode", 18, nullptr},
      {"TRESUsageInMinTask", 18, nullptr},
      {"TRESUsageInTot", 14, nullptr},
      {"TRESUsageOutAve", 15, nullptr},
      {"TRESUsageOutMax", 15, nullptr},
      {"TRESUsageOutMaxNode", 19, nullptr},
      {"TRESUsageOutMaxTask", 19, nullptr},
      {"TRESUsageOutMin", 15, nullptr},
      {"TRESUsageOutMinNode", 19, nullptr},
      {"TRESUsageOutMinTask", 19, nullptr},
      {"TRESUsageOutTot", 15, nullptr},
      {"UID", 6,
       [](Row row, At at) {
         const auto uid = at.uid_of && !row.IsStep() ? at.uid_of(row.job->user) : std::nullopt;
         return uid.has_value() ? absl::StrCat(*uid) : "";
       }},
      {"User", 9, [](Row row, At) { return row.IsStep() ? "" : row.job->user; }},
      {"UserCPU", 10, nullptr},
      {"WCKey", 10, nullptr},
      {"WCKeyID", 10, nullptr},
      {"WorkDir", 20,
       [](Row row, At) { return row.IsStep() ? std::string() : row.job->working_dir; }},
  };
  return *fields;
}

struct Column {
  const SacctField* field;
  int width;
};

absl::StatusOr<std::vector<Column>> ColumnsOf(const std::string& format) {
  std::vector<Column> columns;
  for (const std::string& item : ItemsOf(format.empty() ? kDefaultFields : format)) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(item, absl::MaxSplits('%', 1));
    const absl::string_view wanted = absl::StripAsciiWhitespace(parts.first);
    const SacctField* found = nullptr;
    std::vector<std::string> names;
    for (const SacctField& field : Fields()) {
      if (absl::EqualsIgnoreCase(field.name, wanted)) found = &field;
      names.push_back(absl::AsciiStrToLower(field.name));
    }
    // As in Slurm, the beginning of a name stands for the first one that begins so.
    for (const SacctField& field : Fields()) {
      if (found == nullptr && !wanted.empty() && absl::StartsWithIgnoreCase(field.name, wanted)) {
        found = &field;
      }
    }
    if (found == nullptr) {
      const std::string meant = Nearest(absl::AsciiStrToLower(wanted), names);
      return Error(absl::StrCat("Invalid field requested: \"", OneLine(wanted, 64), "\"",
                                meant.empty() ? "" : absl::StrCat("; did you mean ", meant, "?")));
    }
    int width = found->width;
    if (absl::StrContains(item, '%') &&
        (!absl::SimpleAtoi(parts.second, &width) || std::abs(width) > 10000)) {
      return Error(absl::StrCat("Invalid width of a field: ", OneLine(item, 64)));
    }
    columns.push_back({found, width});
  }
  return columns;
}

// A text that is too long ends with a '+'.
std::string Padded(const std::string& text, int width) {
  const size_t size = std::abs(width);
  std::string shown = text.size() > size ? text.substr(0, size) : text;
  if (text.size() > size && size > 0) shown.back() = '+';
  return Field(shown, size, width > 0) + " ";
}

std::string Line(const std::vector<std::string>& texts, const std::vector<Column>& columns,
                 const SacctOptions& options) {
  std::string line;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (options.parsable) {
      const bool parted = i + 1 < columns.size() || options.delimiter_at_end;
      absl::StrAppend(&line, texts[i], parted ? options.delimiter : "");
    } else {
      line += Padded(texts[i], columns[i].width);
    }
  }
  return line + "\n";
}

std::vector<SacctRow> RowsOf(const std::vector<JobRecord>& records, const SacctOptions& options) {
  std::vector<SacctRow> rows;
  for (const JobRecord& record : records) {
    rows.push_back({&record});
    const bool began = record.began != absl::InfinitePast();
    if (record.batch && began && !options.allocations_only) rows.push_back({&record, true});
  }
  return rows;
}

int64_t UnixSeconds(absl::Time time) {
  return time == absl::InfinitePast() ? 0 : absl::ToUnixSeconds(time);
}

nlohmann::json JsonOf(const SacctRow& row, const TextSurroundings& at) {
  const JobRecord& job = *row.job;
  const nlohmann::json state = {{"current", {StateOf(job)}}, {"reason", job.reason}};
  const nlohmann::json exit = {{"return_code", job.exit_code},
                               {"signal", {{"signal_id", job.exit_signal}}},
                               {"status", job.exit_signal != 0 ? "SIGNALED"
                                          : job.exit_code != 0 ? "ERROR"
                                                               : "SUCCESS"}};
  const nlohmann::json time = {{"elapsed", absl::ToInt64Seconds(job.Elapsed(at.now))},
                               {"submission", UnixSeconds(job.submitted)},
                               {"start", UnixSeconds(job.began)},
                               {"end", UnixSeconds(job.ended)}};
  if (row.IsStep()) {
    return {{"step", {{"id", RowId(row)}, {"name", row.is_batch ? "batch" : job.name}}},
            {"state", {StateOf(job)}},
            {"exit_code", exit},
            {"nodes", {{"range", NodeList(row)}}},
            {"tasks", {{"count", row.is_batch ? 1 : job.tasks}}},
            {"time", time}};
  }
  const nlohmann::json array = {
      {"job_id", job.array},
      {"task_id", job.array == 0 || !job.indices.empty() ? nlohmann::json(nullptr)
                                                         : nlohmann::json(job.array_index)},
      {"task", job.indices},
      {"limits", {{"max", {{"running", {{"tasks", job.array_at_once}}}}}}}};
  return {{"job_id", job.id},
          {"array", array},
          {"name", job.name},
          {"user", job.user},
          {"partition", kPartition},
          {"account", ""},
          {"state", state},
          {"exit_code", exit},
          {"nodes", NodeList(row)},
          {"allocation_nodes", job.IsPending() ? 0 : job.node_count},
          {"working_directory", job.working_dir},
          {"constraints", job.features},
          {"restart_cnt", job.restarts},
          {"time", time},
          {"steps", nlohmann::json::array()}};
}

std::string Json(const std::vector<SacctRow>& rows, const TextSurroundings& at) {
  nlohmann::json jobs = nlohmann::json::array();
  for (const SacctRow& row : rows) {
    if (!row.IsStep()) {
      jobs.push_back(JsonOf(row, at));
    } else if (!jobs.empty() && jobs.back()["job_id"] == row.job->id) {
      jobs.back()["steps"].push_back(JsonOf(row, at));
    }
  }
  return nlohmann::json{{"jobs", std::move(jobs)}}.dump(2) + "\n";
}

}  // namespace

absl::StatusOr<SacctOptions> ReadSacct(const std::vector<std::string>& arguments,
                                       const std::map<std::string, std::string>& environment,
                                       absl::Time now, absl::TimeZone zone) {
  ASSIGN_OR_RETURN(const ParsedOptions parsed,
                   ParseOptions(arguments, Table(), AfterFirstWord::kOptionsToo));
  SacctOptions options;
  for (const GivenOption& given : parsed.options) {
    RETURN_IF_ERROR(TakeOption(given, now, zone, &options));
  }
  if (!parsed.rest.empty()) {
    return Error(absl::StrCat("Unknown arguments: ", OneLine(parsed.rest[0], 64)));
  }
  const auto format = environment.find("SACCT_FORMAT");
  if (options.format.empty() && format != environment.end()) options.format = format->second;
  // Who asks for jobs by id gets them whenever they ran and whose they are.
  if (!options.selection.ids.empty()) {
    options.all_users = options.all_users || options.users.empty();
  } else if (options.from == absl::InfinitePast()) {
    options.from = Midnight(now, zone);
  }
  return options;
}

std::vector<JobRecord> ChooseForSacct(const std::vector<JobRecord>& records,
                                      const SacctOptions& options, absl::Time now) {
  JobSelection selection = options.selection;
  std::set<std::string> ids = std::move(selection.ids);
  selection.ids.clear();
  // The user, the state and the time of a job also decide about its steps.
  std::set<uint64_t> shown;
  std::vector<JobRecord> chosen;
  const auto is_wanted = [&ids](const JobRecord& record) {
    JobSelection wanted;
    wanted.ids = ids;
    return wanted.Selects(record);
  };
  for (const JobRecord& record : records) {
    if (record.step.has_value()) {
      const bool alone = ids.count(record.Id()) != 0 || ids.count(record.RawId()) != 0;
      const bool with_job = shown.count(record.id) != 0 && is_wanted(record);
      if (!options.allocations_only && (alone || with_job)) chosen.push_back(record);
      continue;
    }
    JobRecord shown_record = record;
    shown_record.state = StateOf(record);
    if (!selection.Selects(shown_record)) continue;
    const absl::Time end = record.ended == absl::InfinitePast() ? now : record.ended;
    if (record.submitted > options.until || end < options.from) continue;
    shown.insert(record.id);
    if (is_wanted(record) || ids.count(record.Id() + ".batch") != 0 ||
        ids.count(record.RawId() + ".batch") != 0) {
      chosen.push_back(record);
    }
  }
  return options.array_elements ? chosen : WithArraysCollapsed(std::move(chosen));
}

absl::StatusOr<std::string> SacctText(const std::vector<JobRecord>& chosen,
                                      const SacctOptions& options, const TextSurroundings& at) {
  const std::vector<SacctRow> rows = RowsOf(chosen, options);
  if (options.json) return Json(rows, at);
  ASSIGN_OR_RETURN(const std::vector<Column> columns, ColumnsOf(options.format));
  std::string text;
  if (options.header) {
    std::vector<std::string> names, rules;
    for (const Column& column : columns) {
      names.push_back(std::string(column.field->name));
      rules.push_back(std::string(std::abs(column.width), '-'));
    }
    text += Line(names, columns, options);
    if (!options.parsable) text += Line(rules, columns, options);
  }
  for (const SacctRow& row : rows) {
    std::vector<std::string> texts;
    for (const Column& column : columns) {
      texts.push_back(column.field->value == nullptr ? ""
                                                     : EscapeControl(column.field->value(row, at)));
    }
    text += Line(texts, columns, options);
  }
  return text;
}

std::string SacctFields() {
  constexpr size_t kInLine = 4;
  constexpr size_t kWidth = 20;
  std::string text;
  for (size_t i = 0; i < Fields().size(); ++i) {
    const bool last = i % kInLine == kInLine - 1 || i + 1 == Fields().size();
    absl::StrAppend(&text, last ? Fields()[i].name : Field(Fields()[i].name, kWidth, false),
                    last ? "\n" : " ");
  }
  return text;
}

std::string SacctHelp() {
  return "Usage: sacct [OPTIONS]\n"
         "Shows jobs and steps of a cluster of Cadre, also those that have ended, as far back as\n"
         "its server keeps its accounting.\n"
         "\n"
         "  -j, --jobs=IDS           only these jobs, and steps as 57.0 [your jobs of today]\n"
         "  -S, --starttime=TIME     since then: 2026-11-29T12:30, 12:30, now-2hours\n"
         "  -E, --endtime=TIME       until then\n"
         "  -u, --user=NAMES         jobs of these users; -a: of all\n"
         "  -s, --state=STATES       only jobs in these states\n"
         "      --name=NAMES         only jobs of these names\n"
         "  -N, --nodelist=HOSTS     only jobs on these nodes\n"
         "  -o, --format=FIELDS      JobID,JobName%20,State,...; -e lists all\n"
         "  -X, --allocations        without steps\n"
         "      --array              a line for each element of an array that waits\n"
         "  -P, --parsable2          parted by '|' and not cut; -p: also at the end of lines\n"
         "  -n, --noheader           without the first lines\n"
         "      --json               as JSON\n";
}

}  // namespace cadre::launcher
