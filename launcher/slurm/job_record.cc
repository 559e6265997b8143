#include "launcher/slurm/job_record.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/host_ranges.h"
#include "base/text.h"
#include "launcher/flags/nearest.h"
#include "launcher/flags/run_options.h"
#include "launcher/slurm/option_values.h"
#include "launcher/spec/queue_values.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {
namespace {

struct State {
  const char* name;
  const char* compact;
};
// Those of Slurm 23.02.
constexpr State kStates[] = {
    {"PENDING", "PD"},       {"RUNNING", "R"},      {"SUSPENDED", "S"},
    {"COMPLETED", "CD"},     {"CANCELLED", "CA"},   {"FAILED", "F"},
    {"TIMEOUT", "TO"},       {"NODE_FAIL", "NF"},   {"PREEMPTED", "PR"},
    {"BOOT_FAIL", "BF"},     {"DEADLINE", "DL"},    {"OUT_OF_MEMORY", "OOM"},
    {"COMPLETING", "CG"},    {"CONFIGURING", "CF"}, {"RESIZING", "RS"},
    {"REQUEUED", "RQ"},      {"REQUEUE_FED", "RF"}, {"REQUEUE_HOLD", "RH"},
    {"SPECIAL_EXIT", "SE"},  {"STOPPED", "ST"},     {"REVOKED", "RV"},
    {"RESV_DEL_HOLD", "RD"}, {"SIGNALING", "SI"},   {"STAGE_OUT", "SO"},
};

absl::Time TimeOf(int64_t unix_ms) {
  return unix_ms == 0 ? absl::InfinitePast() : absl::FromUnixMillis(unix_ms);
}

std::string EndState(const v1::JobStatus& job) {
  const v1::Verdict& verdict = job.verdict();
  if (verdict.outcome() == v1::SUCCEEDED) return "COMPLETED";
  // The server ends a job at its deadline as a user would.
  const int64_t deadline = job.queue().deadline_unix_ms();
  const bool cancelled =
      verdict.outcome() == v1::CANCELLED_PHASE || verdict.root_cause().cause() == v1::TOTAL_TIMEOUT;
  if (cancelled && deadline != 0 && job.ended_unix_ms() >= deadline) return "DEADLINE";
  if (verdict.outcome() == v1::CANCELLED_PHASE) return "CANCELLED";
  switch (verdict.root_cause().cause()) {
    case v1::TOTAL_TIMEOUT:
      return "TIMEOUT";
    case v1::NODE_LOST:
      return "NODE_FAIL";
    case v1::PREEMPTED:
      return "PREEMPTED";
    case v1::REQUEUED:
      return "REQUEUED";
    case v1::OUT_OF_MEMORY:
      return "OUT_OF_MEMORY";
    case v1::CANCELLED:
      return "CANCELLED";
    default:
      return "FAILED";
  }
}

// Why a job failed, in Slurm's word.
std::string EndReason(const std::string& state) {
  if (state == "TIMEOUT") return "TimeLimit";
  if (state == "DEADLINE") return "DeadLine";
  if (state == "NODE_FAIL") return "NodeDown";
  if (state == "OUT_OF_MEMORY") return "OutOfMemory";
  return state == "FAILED" ? "NonZeroExitCode" : "None";
}

// `has_nodes`: the cluster has given it some.
std::string StateOf(const v1::JobStatus& job, bool has_nodes) {
  if (job.has_verdict()) return EndState(job);
  switch (job.phase()) {
    case v1::RUNNING:
      return "RUNNING";
    case v1::STOPPING:
      return "COMPLETING";
    case v1::GATHERING:
      // Clients that read states take a job for ended that is CONFIGURING. One that was put back
      // into the queue has none of its nodes.
      return job.began_unix_ms() != 0 && (has_nodes || job.step_of() != 0) ? "RUNNING" : "PENDING";
    default:
      return "PENDING";
  }
}

// Slurm's word for why a job waits. A server of an earlier version says it in its own words only.
std::string WaitReason(const v1::JobStatus& job) {
  const std::string& waiting_for = job.waiting_for();
  if (!job.queue_reason().empty()) return job.queue_reason();
  if (job.held()) return "JobHeldUser";
  if (waiting_for.empty()) return "None";
  if (absl::StartsWith(waiting_for, "its turn")) return "Priority";
  return absl::StrContains(waiting_for, "drained") ? "ReqNodeNotAvail" : "Resources";
}

void SetEnd(const v1::Verdict& verdict, JobRecord* record) {
  record->reason = EndReason(record->state);
  record->reason_text = verdict.message();
  const v1::WorkerExit& exit = verdict.root_cause().exit();
  if (record->state == "OUT_OF_MEMORY") {
    // What sacct shows for it.
    record->exit_signal = 125;
  } else if (verdict.root_cause().has_exit() && exit.signal() != 0) {
    record->exit_signal = exit.signal();
  } else if (record->state == "FAILED") {
    record->exit_code = verdict.exit_status();
  }
}

// What a job has of the cluster's nodes, in the order in which it was given them.
using Parts = std::map<std::string, std::map<uint64_t, v1::Part>>;

Parts PartsByJob(const v1::ListNodesReply& nodes) {
  Parts parts;
  for (const v1::ClusterNodeStatus& node : nodes.nodes()) {
    for (const v1::Part& part : node.parts()) {
      v1::Part& known = parts[part.job()][part.id()];
      known = part;
      known.set_node(node.name());
    }
  }
  return parts;
}

void SetShare(const v1::JobStatus& job, const Parts& parts, JobRecord* record) {
  const auto found = parts.find(job.name());
  if (found != parts.end() && !job.has_verdict()) {
    for (const auto& [id, part] : found->second) {
      record->nodes.push_back(part.node());
      record->tasks += part.workers();
      record->cpus += part.cpus();
      record->gpus += part.gpus();
      record->memory += part.memory();
    }
  }
  if (job.allocated_size() > 0) {
    record->nodes.assign(job.allocated().begin(), job.allocated().end());
  }
  if (record->nodes.empty()) {
    std::vector<const v1::NodeStatus*> members;
    for (const v1::NodeStatus& node : job.nodes()) {
      if (node.node_rank() >= 0) members.push_back(&node);
    }
    std::sort(members.begin(), members.end(),
              [](const auto* a, const auto* b) { return a->node_rank() < b->node_rank(); });
    for (const v1::NodeStatus* const node : members) record->nodes.push_back(node->name());
  }
  const auto& generations = job.timeline().generations();
  record->node_count = record->nodes.size();
  if (record->node_count == 0) record->node_count = job.nodes_in();
  if (record->tasks == 0) record->tasks = job.world_size();
  if (!generations.empty()) {
    if (record->node_count == 0) record->node_count = generations.rbegin()->nodes();
    if (record->tasks == 0) record->tasks = generations.rbegin()->world_size();
  }
  if (record->node_count == 0) record->node_count = job.min_nodes();
  // What the server says of the whole job, while it waits too.
  if (job.workers() != 0) record->tasks = job.workers();
  if (job.cpus() != 0) record->cpus = job.cpus();
  if (job.gpus() != 0) record->gpus = job.gpus();
  if (job.memory() != 0) record->memory = job.memory();
  // Each task has one at least.
  if (record->cpus == 0) record->cpus = record->tasks;
}

// What the job asked for.
void SetRequest(const v1::JobStatus& job, JobRecord* record) {
  const v1::QueueOptions& queue = job.queue();
  record->held = job.held();
  record->not_before = TimeOf(queue.begin_unix_ms());
  record->deadline = TimeOf(queue.deadline_unix_ms());
  record->dependency = DependenciesText(queue);
  record->batch = !job.batch_name().empty();
  record->requeues = !job.no_requeue();
  record->command = job.command();
  record->working_dir = job.working_dir();
  record->stdout_file = job.stdout_file();
  record->stderr_file = job.stderr_file();
  const v1::Placement& placement = job.placement();
  record->wanted_nodes = CompressHosts({placement.nodes().begin(), placement.nodes().end()});
  record->excluded_nodes = CompressHosts({placement.exclude().begin(), placement.exclude().end()});
  record->features = absl::StrJoin(placement.labels(), "&");
}

// As the user wrote it.
std::string NameOf(const v1::JobStatus& job) {
  if (!job.batch_name().empty()) return job.batch_name();
  return job.submitted_name().empty() ? job.name() : job.submitted_name();
}

JobRecord RecordOf(const v1::JobStatus& job, const Parts& parts) {
  JobRecord record;
  record.server_id = job.submission();
  record.id = job.step_of() != 0 ? job.step_of() : job.submission();
  if (job.step_of() != 0) record.step = job.step();
  record.array = job.array();
  record.array_index = job.array_index();
  record.array_at_once = job.array_at_once();
  record.name = NameOf(job);
  record.user = job.user();
  record.state = StateOf(job, job.allocated_size() > 0 || parts.count(job.name()) != 0);
  record.submitted = TimeOf(job.submitted_unix_ms());
  record.began = TimeOf(job.began_unix_ms());
  record.ended = TimeOf(job.ended_unix_ms());
  if (job.limit_us() != 0) record.limit = absl::Microseconds(job.limit_us());
  record.priority = job.priority();
  record.restarts = job.restarts();
  if (job.has_verdict()) {
    SetEnd(job.verdict(), &record);
  } else if (record.IsPending()) {
    record.reason = WaitReason(job);
    record.reason_text = job.waiting_for();
    // It may have run before it was put back into the queue.
    record.began = absl::InfinitePast();
    record.starts = TimeOf(job.begins_until_unix_ms());
  }
  SetRequest(job, &record);
  SetShare(job, parts, &record);
  return record;
}

}  // namespace

bool JobRecord::HasEnded() const {
  return state != "PENDING" && state != "RUNNING" && state != "COMPLETING";
}

std::string JobRecord::Id() const {
  if (array == 0) return RawId();
  const std::string elements =
      indices.empty()
          ? absl::StrCat(array_index)
          : absl::StrCat("[", indices, array_at_once == 0 ? "" : absl::StrCat("%", array_at_once),
                         "]");
  return absl::StrCat(array, "_", elements, step.has_value() ? absl::StrCat(".", *step) : "");
}

std::string JobRecord::RawId() const {
  return step.has_value() ? absl::StrCat(id, ".", *step) : absl::StrCat(id);
}

std::string JobRecord::NodeList() const { return CompressHosts(nodes); }

absl::Duration JobRecord::Elapsed(absl::Time now) const {
  if (began == absl::InfinitePast()) return absl::ZeroDuration();
  const absl::Time end = ended == absl::InfinitePast() ? now : ended;
  return std::max(end - began, absl::ZeroDuration());
}

std::vector<JobRecord> RecordsOf(const std::vector<v1::JobStatus>& jobs,
                                 const v1::ListNodesReply& nodes) {
  const Parts parts = PartsByJob(nodes);
  std::vector<JobRecord> records;
  std::set<uint64_t> with_steps;
  std::map<uint64_t, const v1::JobStatus*> elements;
  for (const v1::JobStatus& job : jobs) {
    // Jobs that nobody submitted have no id.
    if (job.submission() == 0) continue;
    records.push_back(RecordOf(job, parts));
    if (job.step_of() != 0) with_steps.insert(job.step_of());
    if (job.array() != 0) elements[job.submission()] = &job;
  }
  for (JobRecord& record : records) {
    const auto element = elements.find(record.id);
    if (record.step.has_value() && element != elements.end()) {
      record.array = element->second->array();
      record.array_index = element->second->array_index();
    }
    record.batch = record.batch || (!record.step.has_value() && with_steps.count(record.id) != 0);
    record.has_steps = !record.step.has_value() && with_steps.count(record.id) != 0;
  }
  std::sort(records.begin(), records.end(), [](const JobRecord& a, const JobRecord& b) {
    return std::make_tuple(a.id, a.step.has_value(), a.step.value_or(0)) <
           std::make_tuple(b.id, b.step.has_value(), b.step.value_or(0));
  });
  return records;
}

std::vector<JobRecord> WithArraysCollapsed(std::vector<JobRecord> records) {
  struct Group {
    size_t place;
    std::vector<uint32_t> indices;
  };
  std::map<std::pair<uint64_t, bool>, Group> groups;
  std::vector<JobRecord> shown;
  for (JobRecord& record : records) {
    const bool alone =
        record.array == 0 || record.step.has_value() || !record.IsPending() || record.restarts > 0;
    if (!alone) {
      const std::pair<uint64_t, bool> key(record.array, record.held);
      const auto [group, added] = groups.try_emplace(key, Group{shown.size(), {}});
      group->second.indices.push_back(record.array_index);
      if (!added) continue;
    }
    shown.push_back(std::move(record));
  }
  for (auto& [unused, group] : groups) {
    if (group.indices.size() < 2) continue;
    std::sort(group.indices.begin(), group.indices.end());
    shown[group.place].indices = IndicesText(group.indices);
  }
  return shown;
}

namespace {

std::string FileOf(const JobRecord& job, const std::string& pattern) {
  if (pattern.empty()) return "";
  std::string file;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (next == 'j') {
      absl::StrAppend(&file, job.id);
    } else if (next == 'A') {
      absl::StrAppend(&file, job.array == 0 ? job.id : job.array);
    } else if (next == 'a' && job.indices.empty()) {
      absl::StrAppend(&file, job.array_index);
    } else if (next == 'x') {
      file += job.name;
    } else if (next == 'u') {
      file += job.user;
    } else if (next == '%') {
      file += '%';
    } else {
      file += pattern[i];
      continue;
    }
    ++i;
  }
  const bool relative = file[0] != '/' && !job.working_dir.empty();
  return relative ? absl::StrCat(job.working_dir, "/", file) : file;
}

}  // namespace

std::string OutputFile(const JobRecord& job) { return FileOf(job, job.stdout_file); }

std::string ErrorFile(const JobRecord& job) {
  return FileOf(job, job.stderr_file.empty() ? job.stdout_file : job.stderr_file);
}

std::string CompactState(absl::string_view state) {
  for (const State& one : kStates) {
    if (one.name == state) return one.compact;
  }
  return "?";
}

absl::StatusOr<std::string> ParseState(absl::string_view text) {
  std::vector<std::string> names;
  for (const State& one : kStates) {
    if (absl::EqualsIgnoreCase(one.name, text) || absl::EqualsIgnoreCase(one.compact, text)) {
      return one.name;
    }
    names.push_back(one.name);
  }
  const std::string meant = Nearest(absl::AsciiStrToUpper(text), names);
  return absl::InvalidArgumentError(
      absl::StrCat("Invalid job state specified: ", OneLine(text, 64),
                   meant.empty() ? "" : absl::StrCat("; did you mean ", meant, "?")));
}

bool JobSelection::Selects(const JobRecord& record) const {
  const auto fits = [](const std::set<std::string>& wanted, const std::string& value) {
    return wanted.empty() || wanted.count(value) != 0;
  };
  if (!ids.empty()) {
    std::vector<std::string> own = {absl::StrCat(record.id), record.RawId()};
    if (record.array != 0) {
      own.push_back(absl::StrCat(record.array));
      own.push_back(absl::StrCat(record.array, "_", record.array_index));
      own.push_back(record.Id());
    }
    const bool meant =
        std::any_of(own.begin(), own.end(), [this](const auto& id) { return ids.count(id) != 0; });
    if (!meant) return false;
  }
  // A name becomes one of small letters, digits and dashes when a job is submitted with it.
  const bool named =
      names.empty() || std::any_of(names.begin(), names.end(), [&](const auto& name) {
        return record.name == name || record.name == JobNameFrom(name);
      });
  const bool placed =
      nodes.empty() || std::any_of(record.nodes.begin(), record.nodes.end(),
                                   [&](const auto& node) { return nodes.count(node) != 0; });
  return named && placed && fits(users, record.user) && fits(states, record.state) &&
         fits(partitions, kPartition);
}

std::string WantedId::Text() const {
  return absl::StrCat(job, index.has_value() ? absl::StrCat("_", *index) : "",
                      step.empty() ? "" : ".", step);
}

bool WantedId::MeansJobOf(const JobRecord& record) const {
  if (index.has_value()) return record.array == job && record.array_index == *index;
  return record.id == job || record.array == job;
}

namespace {

// Splits at commas outside of brackets.
std::vector<std::string> SplitIds(absl::string_view list) {
  std::vector<std::string> items = {""};
  bool inside = false;
  for (const char c : list) {
    if (c == '[' || c == ']') inside = c == '[';
    if (c == ',' && !inside) {
      items.emplace_back();
    } else {
      items.back() += c;
    }
  }
  items.erase(std::remove_if(
                  items.begin(), items.end(),
                  [](const std::string& item) { return absl::StripAsciiWhitespace(item).empty(); }),
              items.end());
  return items;
}

bool Number(absl::string_view text, uint64_t* number) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, number);
}

// Adds the ids of one item, as "57", "57_3", "57_[1-3]" or "57.2".
bool AddWanted(absl::string_view item, std::vector<WantedId>* wanted) {
  WantedId id;
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(item, absl::MaxSplits('.', 1));
  uint64_t step = 0;
  if (absl::StrContains(item, '.')) {
    const bool numbered = Number(parts.second, &step) && step <= UINT32_MAX;
    if (!numbered && parts.second != "batch") return false;
    id.step = numbered ? absl::StrCat(step) : std::string(parts.second);
  }
  const std::pair<absl::string_view, absl::string_view> elements =
      absl::StrSplit(parts.first, absl::MaxSplits('_', 1));
  if (!Number(elements.first, &id.job) || id.job == 0) return false;
  if (!absl::StrContains(parts.first, '_') || elements.second == "*") {
    wanted->push_back(id);
    return true;
  }
  absl::string_view indices = elements.second;
  const bool bracket = absl::ConsumePrefix(&indices, "[");
  if (bracket != absl::ConsumeSuffix(&indices, "]")) return false;
  uint64_t single = 0;
  if (!bracket && !Number(indices, &single)) return false;
  const absl::StatusOr<SlurmArray> array = ParseSlurmArray(indices);
  if (!array.ok()) return false;
  for (const uint32_t index : array->indices) {
    id.index = index;
    wanted->push_back(id);
  }
  return true;
}

}  // namespace

absl::StatusOr<std::vector<WantedId>> ParseWantedIds(absl::string_view list) {
  std::vector<WantedId> wanted;
  for (const std::string& item : SplitIds(list)) {
    if (AddWanted(absl::StripAsciiWhitespace(item), &wanted)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("Invalid job id specified: ", OneLine(item, 64)));
  }
  return wanted;
}

std::vector<std::string> ItemsOf(absl::string_view list) {
  return absl::StrSplit(list, ',', absl::SkipWhitespace());
}

std::string TimeText(absl::Time time, absl::TimeZone zone, const std::string& format,
                     absl::string_view unknown) {
  if (time == absl::InfinitePast()) return std::string(unknown);
  const bool standard = format.empty() || format == "standard" || format == "relative";
  return absl::FormatTime(standard ? "%Y-%m-%dT%H:%M:%S" : format, time, zone);
}

std::string LongTime(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return "UNLIMITED";
  const int64_t seconds = std::max<int64_t>(absl::ToInt64Seconds(duration), 0);
  const std::string time =
      absl::StrFormat("%02d:%02d:%02d", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
  return seconds < 86400 ? time : absl::StrCat(seconds / 86400, "-", time);
}

std::string ShortTime(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return "UNLIMITED";
  const int64_t seconds = std::max<int64_t>(absl::ToInt64Seconds(duration), 0);
  if (seconds >= 86400) return LongTime(duration);
  if (seconds < 3600) return absl::StrFormat("%d:%02d", seconds / 60, seconds % 60);
  return absl::StrFormat("%d:%02d:%02d", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

}  // namespace cadre::launcher
