#include "rendezvous/accounting/rows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/time/time.h"
#include "base/host_ranges.h"
#include "base/text.h"

namespace cadre::accounting {
namespace {

// Of the verdict's message.
constexpr size_t kMessageBytes = 1024;

using Uses = std::map<std::string, v1::NodeUse>;

void AddUse(const std::string& node, int64_t held_us, int64_t cpu_us, int64_t gpu_us, Uses* uses) {
  v1::NodeUse& use = (*uses)[node];
  use.set_node(node);
  use.set_held_us(use.held_us() + held_us);
  use.set_cpu_us(use.cpu_us() + cpu_us);
  use.set_gpu_us(use.gpu_us() + gpu_us);
}

v1::NodeUse SumOf(const std::vector<v1::NodeUse>& uses) {
  v1::NodeUse sum;
  for (const v1::NodeUse& use : uses) {
    sum.set_held_us(sum.held_us() + use.held_us());
    sum.set_cpu_us(sum.cpu_us() + use.cpu_us());
    sum.set_gpu_us(sum.gpu_us() + use.gpu_us());
  }
  return sum;
}

// Whether the job has the allocation. One that is older was that of an ended job of the same name.
bool Has(const state::Job& job, const saved::PlacedPart& allocation) {
  return job.id() != 0 && allocation.part().job() == job.name() &&
         (allocation.placed_us() == 0 ||
          allocation.placed_us() >= job.saved.times().submitted_us());
}

// The cause of the generation's first failure, which may have been forgotten.
v1::FailureCause CauseOf(const state::Job& job, uint64_t generation) {
  for (const v1::Failure& failure : job.saved.earlier()) {
    if (failure.generation() == generation) return failure.cause();
  }
  const v1::Failure& last = job.saved.verdict().root_cause();
  return last.generation() == generation ? last.cause() : v1::FAILURE_CAUSE_UNSPECIFIED;
}

// The time that a failure has cost the job. `next`: the first later generation whose workers all
// ran or which failed too; null: there was none before the job's end, at `end_us`.
int64_t LostAfter(const v1::GenerationTimeline& failed, const v1::GenerationTimeline* next,
                  int64_t end_us) {
  int64_t until_us = end_us;
  int64_t queued_us = 0;
  if (next != nullptr) {
    until_us = next->running_us() != 0 ? next->running_us() : next->failed_us();
    if (failed.stopped_us() != 0) {
      queued_us = std::max<int64_t>(next->gathering_us() - failed.stopped_us(), 0);
    }
  }
  return std::max<int64_t>(until_us - failed.failed_us() - queued_us, 0);
}

// The job's nodes at its end.
std::vector<std::string> NodesOf(const state::Job& job, const std::vector<v1::NodeUse>& uses) {
  const auto& last = job.saved.submission().last_nodes();
  if (!last.empty()) return {last.begin(), last.end()};
  std::vector<std::string> nodes;
  for (const v1::NodeUse& use : uses) nodes.push_back(use.node());
  if (!nodes.empty()) return nodes;
  for (const saved::Member& member : job.generation.saved.members()) nodes.push_back(member.node());
  return nodes;
}

// How many CPUs or GPUs it had at once, from their time.
uint32_t HadAtOnce(int64_t time_us, int64_t held_us) {
  if (held_us <= 0) return 0;
  return static_cast<uint32_t>(
      std::llround(static_cast<double>(time_us) / static_cast<double>(held_us)));
}

void SetHowItEnded(const v1::Verdict& verdict, v1::AccountedJob* row) {
  row->set_exit_status(verdict.exit_status());
  row->set_message(Shortened(verdict.message(), kMessageBytes));
  row->set_restarts(verdict.restarts());
  row->set_generations(verdict.generations());
  if (!verdict.has_root_cause()) return;
  row->set_cause(verdict.root_cause().cause());
  row->set_signal(verdict.root_cause().exit().signal());
}

void SetTimes(const state::Job& job, const RowOrigin& origin, v1::AccountedJob* row) {
  const saved::JobTimes& times = job.saved.times();
  const auto unix_ms = [&](int64_t at_us) {
    return at_us == 0 ? 0 : origin.unix_ms_at_zero + at_us / 1000;
  };
  row->set_submitted_unix_ms(unix_ms(times.submitted_us()));
  row->set_began_unix_ms(unix_ms(job.user().empty() ? times.created_us() : times.began_us()));
  row->set_ended_unix_ms(unix_ms(times.ended_us()));
  if (job.policy.total_timeout != absl::InfiniteDuration()) {
    row->set_limit_us(absl::ToInt64Microseconds(job.policy.total_timeout));
  }
}

// What is known of allocations that have not ended, and is forgotten with them.
void SetFromAllocations(const state::Job& job, const state::Cluster& cluster,
                        v1::AccountedJob* row) {
  uint64_t memory = 0;
  uint32_t workers = 0;
  for (const auto& [id, allocation] : cluster.allocations) {
    if (!Has(job, allocation)) continue;
    row->set_holds_nodes(true);
    memory += allocation.part().memory();
    workers += allocation.part().workers();
  }
  row->set_memory(memory);
  if (row->workers() == 0) row->set_workers(workers);
}

}  // namespace

std::vector<v1::NodeUse> UsesOf(const state::Job& job, const state::Cluster& cluster) {
  Uses uses;
  for (const saved::NodeTime& time : job.saved.node_times()) {
    AddUse(time.node(), time.held_us(), time.cpu_us(), time.gpu_us(), &uses);
  }
  const int64_t ended_us = job.saved.times().ended_us();
  for (const auto& [id, allocation] : cluster.allocations) {
    const v1::Part& part = allocation.part();
    const int64_t held_us = ended_us - allocation.placed_us();
    if (!Has(job, allocation) || allocation.placed_us() == 0 || held_us <= 0) continue;
    AddUse(part.node(), held_us, held_us * part.cpus(), held_us * part.gpus(), &uses);
  }
  std::vector<v1::NodeUse> list;
  list.reserve(uses.size());
  for (auto& [node, use] : uses) list.push_back(std::move(use));
  return list;
}

std::vector<v1::LostTime> LostOf(const state::Job& job, const v1::NodeUse& used) {
  const auto& generations = job.saved.timeline().generations();
  const int64_t end_us = job.saved.times().ended_us() - job.saved.times().created_us();
  const bool failed = job.phase() == v1::FAILED;
  // Of a batch job's nodes only that of the script is in a generation.
  const int all_nodes = job.saved.spec().has_batch() ? job.saved.submission().last_nodes_size() : 0;
  int64_t cpu_left_us = used.cpu_us(), gpu_left_us = used.gpu_us();
  std::map<v1::FailureCause, v1::LostTime> by_cause;
  for (int i = 0; i < generations.size(); ++i) {
    const v1::GenerationTimeline& generation = generations[i];
    if (generation.failed_us() == 0) continue;
    const auto next = std::find_if(
        generations.begin() + i + 1, generations.end(),
        [](const auto& later) { return later.running_us() != 0 || later.failed_us() != 0; });
    // What follows the last failure of a job that fails is wasted.
    if (failed && next == generations.end()) continue;
    const int64_t wall_us =
        LostAfter(generation, next == generations.end() ? nullptr : &*next, end_us);
    const double nodes = std::max(static_cast<int>(generation.nodes()), all_nodes);
    const auto share = [&](int64_t time_us, int64_t* left_us) {
      if (used.held_us() <= 0) return int64_t{0};
      const double on_a_node = static_cast<double>(time_us) / static_cast<double>(used.held_us());
      const int64_t lost_us = std::min<int64_t>(
          std::llround(static_cast<double>(wall_us) * nodes * on_a_node), *left_us);
      *left_us -= lost_us;
      return lost_us;
    };
    const v1::FailureCause cause = CauseOf(job, generation.generation());
    v1::LostTime& lost = by_cause[cause];
    lost.set_cause(cause);
    lost.set_wall_us(lost.wall_us() + wall_us);
    lost.set_cpu_us(lost.cpu_us() + share(used.cpu_us(), &cpu_left_us));
    lost.set_gpu_us(lost.gpu_us() + share(used.gpu_us(), &gpu_left_us));
    lost.set_failures(lost.failures() + 1);
  }
  std::vector<v1::LostTime> list;
  for (auto& [cause, lost] : by_cause) list.push_back(std::move(lost));
  if (!failed) return list;
  int64_t lost_us = 0;
  for (const v1::LostTime& lost : list) lost_us += lost.wall_us();
  v1::LostTime& wasted = list.emplace_back();
  wasted.set_cause(job.saved.verdict().root_cause().cause());
  wasted.set_wasted(true);
  if (job.saved.times().began_us() != 0 || job.user().empty()) {
    wasted.set_wall_us(std::max<int64_t>(end_us - lost_us, 0));
  }
  wasted.set_cpu_us(cpu_left_us);
  wasted.set_gpu_us(gpu_left_us);
  return list;
}

v1::AccountedJob RowOf(const state::Job& job, const state::Cluster& cluster,
                       const RowOrigin& origin) {
  const saved::Submission& submission = job.saved.submission();
  const v1::JobSpec& spec = job.saved.spec();
  v1::AccountedJob row;
  row.set_server_id(origin.server_id);
  row.set_ended_order(job.saved.ended());
  row.set_id(job.id());
  row.set_name(job.submitted_name());
  row.set_user(job.owner());
  row.set_step_of(submission.step_of());
  row.set_step(submission.step());
  row.set_array(submission.array());
  row.set_array_index(submission.array_index());
  row.set_array_size(submission.array_size());
  row.set_phase(job.phase());
  row.set_priority(spec.priority());
  row.set_command(state::CommandText(job));
  row.set_working_dir(spec.working_dir());
  row.set_batch(spec.has_batch());
  SetHowItEnded(job.saved.verdict(), &row);
  SetTimes(job, origin, &row);
  const auto& generations = job.saved.timeline().generations();
  if (!generations.empty()) row.set_workers(generations.rbegin()->world_size());
  SetFromAllocations(job, cluster, &row);

  const std::vector<v1::NodeUse> uses = UsesOf(job, cluster);
  const v1::NodeUse used = SumOf(uses);
  row.set_held_us(used.held_us());
  row.set_cpu_us(used.cpu_us());
  row.set_gpu_us(used.gpu_us());
  for (v1::LostTime& lost : LostOf(job, used)) *row.add_lost() = std::move(lost);

  const std::vector<std::string> nodes = NodesOf(job, uses);
  row.set_nodes(CompressHosts(nodes));
  row.set_node_count(static_cast<uint32_t>(nodes.size()));
  for (const std::string& node : nodes) {
    const auto use = std::lower_bound(
        uses.begin(), uses.end(), node,
        [](const v1::NodeUse& one, const std::string& name) { return one.node() < name; });
    if (use == uses.end() || use->node() != node) continue;
    row.set_cpus(row.cpus() + HadAtOnce(use->cpu_us(), use->held_us()));
    row.set_gpus(row.gpus() + HadAtOnce(use->gpu_us(), use->held_us()));
  }
  for (const v1::NodeUse& use : uses) *row.add_node_uses() = use;
  return row;
}

std::string JobChangedBy(const v1::Record& record, const state::State& state) {
  if (record.has_job_ended()) return record.job();
  if (!record.has_part_ended()) return "";
  const auto found = state.cluster.allocations.find(record.part_ended().id());
  return found == state.cluster.allocations.end() ? "" : found->second.part().job();
}

std::optional<v1::AccountedJob> RowAfter(const v1::Record& record, const std::string& job,
                                         const state::State& state, const RowOrigin& origin) {
  if (job.empty()) return std::nullopt;
  const auto found = state.jobs.find(job);
  if (found == state.jobs.end() || !state::HasEnded(found->second.phase())) return std::nullopt;
  const auto& allocations = state.cluster.allocations;
  if (record.has_part_ended() &&
      std::any_of(allocations.begin(), allocations.end(),
                  [&](const auto& one) { return one.second.part().job() == job; })) {
    return std::nullopt;
  }
  return RowOf(found->second, state.cluster, origin);
}

std::vector<v1::AccountedJob> RowsOf(const state::State& state, const RowOrigin& origin) {
  std::vector<v1::AccountedJob> rows;
  for (const auto& [order, name] : state.ended_jobs) {
    rows.push_back(RowOf(state.jobs.at(name), state.cluster, origin));
  }
  return rows;
}

std::string CauseWord(v1::FailureCause cause) {
  if (cause == v1::FAILURE_CAUSE_UNSPECIFIED || !v1::FailureCause_IsValid(cause)) return "unknown";
  return absl::AsciiStrToLower(v1::FailureCause_Name(cause));
}

}  // namespace cadre::accounting
