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
#include "absl/strings/str_split.h"
#include "base/host_ranges.h"
#include "base/text.h"
#include "launcher/flags/nearest.h"
#include "launcher/flags/run_options.h"

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

std::string EndState(const v1::Verdict& verdict) {
  if (verdict.outcome() == v1::SUCCEEDED) return "COMPLETED";
  if (verdict.outcome() == v1::CANCELLED_PHASE) return "CANCELLED";
  switch (verdict.root_cause().cause()) {
    case v1::TOTAL_TIMEOUT:
      return "TIMEOUT";
    case v1::NODE_LOST:
      return "NODE_FAIL";
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
  if (state == "NODE_FAIL") return "NodeDown";
  if (state == "OUT_OF_MEMORY") return "OutOfMemory";
  return state == "FAILED" ? "NonZeroExitCode" : "None";
}

std::string StateOf(const v1::JobStatus& job) {
  if (job.has_verdict()) return EndState(job.verdict());
  switch (job.phase()) {
    case v1::RUNNING:
      return "RUNNING";
    case v1::STOPPING:
      return "COMPLETING";
    case v1::GATHERING:
      // Clients that read states take a job for ended that is CONFIGURING.
      return job.began_unix_ms() != 0 ? "RUNNING" : "PENDING";
    default:
      return "PENDING";
  }
}

// Slurm's word for why a job waits.
std::string WaitReason(const std::string& waiting_for) {
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
  // Each task has one at least.
  if (record->cpus == 0) record->cpus = record->tasks;
}

JobRecord RecordOf(const v1::JobStatus& job, const Parts& parts) {
  JobRecord record;
  record.server_id = job.submission();
  record.id = job.step_of() != 0 ? job.step_of() : job.submission();
  if (job.step_of() != 0) record.step = job.step();
  record.name = job.submitted_name().empty() ? job.name() : job.submitted_name();
  record.user = job.user();
  record.state = StateOf(job);
  record.submitted = TimeOf(job.submitted_unix_ms());
  record.began = TimeOf(job.began_unix_ms());
  record.ended = TimeOf(job.ended_unix_ms());
  if (job.limit_us() != 0) record.limit = absl::Microseconds(job.limit_us());
  record.priority = job.priority();
  record.restarts = job.restarts();
  if (job.has_verdict()) {
    SetEnd(job.verdict(), &record);
  } else if (record.IsPending()) {
    record.reason = WaitReason(job.waiting_for());
    record.reason_text = job.waiting_for();
  }
  SetShare(job, parts, &record);
  return record;
}

}  // namespace

bool JobRecord::HasEnded() const {
  return state != "PENDING" && state != "RUNNING" && state != "COMPLETING";
}

std::string JobRecord::Id() const {
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
  for (const v1::JobStatus& job : jobs) {
    // Jobs that nobody submitted have no id.
    if (job.submission() == 0) continue;
    records.push_back(RecordOf(job, parts));
    if (job.step_of() != 0) with_steps.insert(job.step_of());
  }
  for (JobRecord& record : records) {
    record.has_steps = !record.step.has_value() && with_steps.count(record.id) != 0;
  }
  std::sort(records.begin(), records.end(), [](const JobRecord& a, const JobRecord& b) {
    return std::make_tuple(a.id, a.step.has_value(), a.step.value_or(0)) <
           std::make_tuple(b.id, b.step.has_value(), b.step.value_or(0));
  });
  return records;
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
  if (!ids.empty() && ids.count(absl::StrCat(record.id)) == 0 && ids.count(record.Id()) == 0) {
    return false;
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

absl::StatusOr<WantedId> ParseWantedId(absl::string_view text) {
  WantedId wanted;
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('.', 1));
  uint32_t step = 0;
  const bool has_step = absl::StrContains(text, '.');
  if (!absl::SimpleAtoi(parts.first, &wanted.job) || wanted.job == 0 ||
      (has_step && parts.second != "batch" && !absl::SimpleAtoi(parts.second, &step))) {
    return absl::InvalidArgumentError(
        absl::StrCat("Invalid job id specified: ", OneLine(text, 64)));
  }
  wanted.step =
      has_step && parts.second != "batch" ? absl::StrCat(step) : std::string(parts.second);
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
