// Jobs are submitted to the cluster, wait in its queue and get their nodes.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log_paths.h"
#include "base/text.h"
#include "rendezvous/core/core_impl.h"
#include "rendezvous/job/report.h"
#include "rendezvous/state/policy.h"

namespace cadre {
namespace {

// It travels to its nodes together with others' in messages of 1 MiB.
constexpr size_t kMaxSubmittedSpecBytes = 512 << 10;

std::string NodesText(const std::vector<MemberState>& members) {
  if (members.empty()) return "its nodes";
  std::vector<std::string> first;
  for (const MemberState& member : members) {
    if (first.size() < kFirstFew) first.push_back(member.node);
  }
  return absl::StrCat(members.size() == 1 ? "node " : "nodes ", FirstFew(first, members.size()));
}

}  // namespace

absl::Status Core::Impl::MaySubmit(const v1::JobSpec& spec, absl::string_view user) const {
  absl::Status good = CheckSpec(spec);
  if (!good.ok()) return good;
  const std::string& name = spec.name();
  if (spec.command().empty()) return absl::InvalidArgumentError("the spec has no command");
  if (spec.ByteSizeLong() > kMaxSubmittedSpecBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the spec has ", spec.ByteSizeLong(),
                                                   " bytes; a job that is submitted has at most ",
                                                   kMaxSubmittedSpecBytes));
  }
  if (user.empty() || user.size() > kMaxNodeTextBytes || HasControlCharacters(user)) {
    return absl::InvalidArgumentError(absl::StrCat("user ", Quoted(user), " is no user's name"));
  }
  if (!config.only_job.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this endpoint is served by a launcher of job ", config.only_job,
                     "; jobs are submitted to 'cadre server'"));
  }
  const auto job = state.jobs.find(name);
  if (job != state.jobs.end() && !HasEnded(job->second.phase)) {
    return absl::AlreadyExistsError(absl::StrCat("job ", name, " is here already (",
                                                 v1::JobPhase_Name(job->second.phase),
                                                 "); take another name, or cancel it"));
  }
  const auto live = lives.find(name);
  const bool leaving =
      (live != lives.end() && live->second.open > 0) ||
      std::any_of(state.cluster.parts.begin(), state.cluster.parts.end(),
                  [&](const auto& part) { return part.second.part.job() == name; });
  if (leaving) {
    return absl::AlreadyExistsError(absl::StrCat(
        "job ", name, " has ended, but its last nodes are still leaving; try again in a moment"));
  }
  const std::string owner(user);
  if (state.by_user.Live(owner) >= kMaxLiveJobsOfUser) {
    return absl::ResourceExhaustedError(
        absl::StrCat("user ", owner, " has ", kMaxLiveJobsOfUser,
                     " jobs that have not ended, and may have no more at once; wait for some to "
                     "end, or cancel them"));
  }
  if (state.jobs.size() - state.ended_jobs.size() >= kMaxLiveJobs) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the server has ", kMaxLiveJobs, " jobs already"));
  }
  return absl::OkStatus();
}

absl::Status Core::Impl::RefuseName(const std::string& name) const {
  const auto found = state.jobs.find(name);
  if (found == state.jobs.end()) return absl::OkStatus();
  const JobState& job = found->second;
  std::string text = absl::StrCat("job ", name, " is ", job.user, "'s: it ");
  if (!HasEnded(job.phase)) {
    absl::StrAppend(&text, "has not ended (", v1::JobPhase_Name(job.phase), ")");
  } else if (job.timeline.generations().empty()) {
    absl::StrAppend(&text, "ended before it ran, and keeps its name");
  } else {
    const int64_t at_us = job.created_us + job.timeline.generations().rbegin()->stopped_us();
    const absl::Time at = absl::FromUnixMillis(config.unix_ms_at_zero) + absl::Microseconds(at_us);
    absl::StrAppend(&text, "ran until ",
                    absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", at, absl::UTCTimeZone()),
                    " and keeps its name");
  }
  return absl::AlreadyExistsError(absl::StrCat(text, "; take another name"));
}

void Core::Impl::OnSubmitted(const JobSubmitted& submitted) {
  if (!MaySubmit(*submitted.spec, submitted.user).ok()) return;
  const std::string& name = submitted.spec->name();
  DropLive(name);
  v1::Record record = NewRecord(name);
  *record.mutable_job_created()->mutable_spec() = *submitted.spec;
  record.mutable_job_created()->set_at_us(now.micros());
  record.mutable_job_created()->set_run(NameOfNewRun());
  record.mutable_job_created()->set_user(submitted.user);
  record.mutable_job_created()->set_request_id(submitted.request_id);
  Commit(std::move(record));
  Note(name, absl::StrCat("submitted by ", submitted.user));
  Touch(name, true);
  cluster_changed = true;
}

void Core::Impl::OnDrained(const NodeDrained& drained) {
  const auto found = state.cluster.nodes.find(drained.node);
  if (found == state.cluster.nodes.end()) return;
  v1::Record record;
  v1::ClusterNodeStatus* node = record.mutable_cluster_node_set()->mutable_node();
  *node = found->second;
  node->set_drained(drained.drained);
  node->set_drain_reason(drained.drained ? OneLine(drained.reason, kMaxNodeTextBytes) : "");
  Commit(std::move(record));
  Note("",
       absl::StrCat("node ", drained.node, drained.drained ? " is drained" : " takes work again",
                    drained.reason.empty() ? "" : ": ", OneLine(drained.reason, 255)));
  cluster_changed = true;
}

bool Core::Impl::MayTakePart(StreamId stream, const std::string& name,
                             const v1::NodeMessage& message) {
  const v1::Join& join = message.join();
  const JobState* job = FindJob(name);
  const bool live = job != nullptr && !HasEnded(job->phase);
  const auto reject = [&](absl::string_view text) {
    Reject(stream, name, absl::StatusCode::kFailedPrecondition, text);
    return false;
  };
  if (join.part() == 0) {
    // An ended one's name stays its user's.
    if (job == nullptr || job->user.empty()) return true;
    return reject(absl::StrCat("job ", name, " was submitted to the cluster by ", job->user,
                               live ? ", and the cluster chooses its nodes" : "",
                               "; give this one another name"));
  }
  const auto part = state.cluster.parts.find(join.part());
  const bool its = part != state.cluster.parts.end() && part->second.part.job() == name &&
                   part->second.part.node() == join.node();
  const NodeState* node = nullptr;
  if (job != nullptr && job->nodes.count(join.node()) != 0) node = &job->nodes.at(join.node());
  if (live && its && (!part->second.taken_back || node != nullptr)) return true;
  // A launcher that was away hears how its job ended, even where its part counts no more by now.
  const bool was_in_it = node != nullptr && node->incarnation == message.incarnation();
  if (!live && (was_in_it || (its && message.generation() != 0))) return true;
  return reject(absl::StrCat("job ", name, " has no part on node ", join.node(), " any more"));
}

std::vector<ScheduleNode> Core::Impl::NodesToSchedule() const {
  std::vector<ScheduleNode> nodes;
  for (const auto& [name, known] : state.cluster.nodes) {
    const auto agent = agents.find(name);
    ScheduleNode node;
    node.name = name;
    node.user = known.user();
    node.cpus = known.cpus();
    node.gpus = known.gpus();
    node.labels.insert(known.labels().begin(), known.labels().end());
    const bool here = agent != agents.end() && agent->second.stream.has_value();
    node.closed = !here                            ? "away"
                  : known.drained()                ? "drained"
                  : !agent->second.strange.empty() ? "still ending an earlier job"
                                                   : "";
    nodes.push_back(std::move(node));
  }
  return nodes;
}

std::vector<ScheduleJob> Core::Impl::JobsToSchedule() const {
  // What ended jobs still hold is held all the same.
  std::map<std::string, std::vector<HeldShare>> held;
  for (const auto& [id, part] : state.cluster.parts) {
    held[part.part.job()].push_back({part.part.node(),
                                     Share{part.part.workers(), part.part.cpus(), part.part.gpus()},
                                     part.taken_back});
  }
  std::vector<ScheduleJob> jobs;
  jobs.reserve(state.jobs.size());
  for (const auto& [name, job] : state.jobs) {
    if (job.user.empty()) continue;
    const auto holds = held.find(name);
    if (HasEnded(job.phase) && holds == held.end()) continue;
    ScheduleJob& to = jobs.emplace_back();
    to.name = name;
    to.user = job.user;
    to.priority = job.spec.priority();
    to.order = job.order;
    if (holds != held.end()) {
      to.held = std::move(holds->second);
      held.erase(holds);
    }
    if (HasEnded(job.phase)) {
      to.min = to.max = 0;
      continue;
    }
    to.min = job.policy.min;
    to.max = job.policy.max;
    to.unit = job.policy.unit;
    to.may_grow = job.policy.scale_up != v1::ElasticPolicy::NEVER;
    to.workers = job.spec.workers_per_node();
    to.resources = job.spec.resources();
    to.spread_over = job.spec.placement().spread_over();
    to.pack = job.spec.placement().pack();
    for (const auto& [node, avoided] : job.avoid) {
      (avoided.unfit() ? to.unfit : to.avoid).insert(node);
    }
    // Its workers may take that long to stop.
    to.limit = job.policy.total_timeout + job.policy.stop_grace + config.stop_margin;
    if (job.phase != v1::QUEUED) to.ends = MonoTime::FromMicros(job.created_us) + to.limit;
  }
  // Of jobs that are forgotten.
  for (auto& [name, shares] : held) {
    ScheduleJob& to = jobs.emplace_back();
    to.name = name;
    to.held = std::move(shares);
    to.min = to.max = 0;
  }
  return jobs;
}

void Core::Impl::TakeBack(uint64_t id) {
  v1::Record record;
  record.mutable_part_taken_back()->set_id(id);
  Commit(std::move(record));
  SendStop(state.cluster.parts.at(id));
}

void Core::Impl::TakeBackFrom(const std::string& job, const std::string& node) {
  for (const auto& [id, part] : state.cluster.parts) {
    if (part.taken_back || part.part.job() != job || part.part.node() != node) continue;
    return TakeBack(id);
  }
}

void Core::Impl::ScheduleCluster() {
  std::vector<uint64_t> over;
  for (const auto& [id, part] : state.cluster.parts) {
    const JobState* job = FindJob(part.part.job());
    if (!part.taken_back && (job == nullptr || HasEnded(job->phase))) over.push_back(id);
  }
  for (const uint64_t id : over) TakeBack(id);
  // A server that began anew does not yet know what there is.
  const bool awaited = std::any_of(agents.begin(), agents.end(), [](const auto& agent) {
    return !agent.second.stream.has_value();
  });
  if (awaited && now < agents_awaited_until) return;
  Schedule schedule = PlaceJobs(NodesToSchedule(), JobsToSchedule(), now);
  CarryOut(schedule);
  queue = std::move(schedule.waiting);
  EndHopeless(schedule.hopeless);
  TakeBackFromUnstarted();
}

void Core::Impl::EndHopeless(const std::map<std::string, std::string>& hopeless) {
  for (const auto& [name, why] : hopeless) {
    const JobState* job = FindJob(name);
    // One that has begun waits for a node as long as for any that is lost.
    if (job == nullptr || HasEnded(job->phase) || job->generations_announced > 0) continue;
    // What happened comes before what follows from it: a table shows the beginning alone.
    EndUnstarted(
        name, absl::StrCat("no node is left for it; tried: ", NodesTried(*job), "; it needs ", why),
        true);
  }
}

std::string Core::Impl::LaunchersAwaited(const JobState& job) const {
  if (job.user.empty()) return "";
  std::vector<std::string> nodes;
  for (const auto& [id, part] : state.cluster.parts) {
    if (part.taken_back || part.part.job() != job.spec.name()) continue;
    if (job.nodes.count(part.part.node()) == 0) nodes.push_back(part.part.node());
  }
  std::string text;
  if (!nodes.empty()) {
    text = absl::StrCat(nodes.size() == 1 ? "its launcher on " : "its launchers on ",
                        FirstFew(nodes, nodes.size()), " to begin");
  }
  const auto lacking = queue.find(job.spec.name());
  if (lacking == queue.end()) return text;
  return absl::StrCat(text, text.empty() ? "" : ", and for ", lacking->second.reason);
}

void Core::Impl::TakeBackFromUnstarted() {
  std::vector<uint64_t> ids;
  for (const auto& [id, part] : state.cluster.parts) {
    if (part.taken_back || queue.count(part.part.job()) == 0) continue;
    const JobState* job = FindJob(part.part.job());
    if (job == nullptr || job->phase != v1::GATHERING || job->generations_announced > 0) continue;
    ids.push_back(id);
    Note(part.part.job(), absl::StrCat("gives back node ", part.part.node(),
                                       ": others that it needs are not there"));
  }
  for (const uint64_t id : ids) TakeBack(id);
}

void Core::Impl::CarryOut(const Schedule& schedule) {
  for (const Withdrawn& withdrawn : schedule.withdraw) {
    Note(withdrawn.job, absl::StrCat("gives up node ", withdrawn.node, ": ", withdrawn.reason));
    for (auto& [id, part] : state.cluster.parts) {
      if (part.part.job() != withdrawn.job || part.part.node() != withdrawn.node) continue;
      TakeBack(id);
      break;
    }
  }
  std::vector<uint64_t> placed;
  for (const Placed& one : schedule.place) {
    v1::Record record;
    v1::Part* part = record.mutable_part_placed()->mutable_part();
    part->set_id(state.cluster.last_part + 1);
    part->set_job(one.job);
    part->set_node(one.node);
    part->set_workers(one.share.workers);
    part->set_cpus(one.share.cpus);
    part->set_gpus(one.share.gpus);
    record.mutable_part_placed()->set_at_us(now.micros());
    placed.push_back(part->id());
    Commit(std::move(record));
    Note(one.job, absl::StrCat("gets node ", one.node, ": ", one.reason));
    Touch(one.job, true);
  }
  // Each of them is told of all.
  for (const uint64_t id : placed) SendStart(state.cluster.parts.at(id));
}

std::vector<v1::ClusterNodeStatus> Core::Impl::ClusterNodes() const {
  std::map<std::string, v1::ClusterNodeStatus> nodes = state.cluster.nodes;
  for (const auto& [id, part] : state.cluster.parts) {
    const auto node = nodes.find(part.part.node());
    if (node != nodes.end()) *node->second.add_parts() = part.part;
  }
  std::vector<v1::ClusterNodeStatus> all;
  for (auto& [name, node] : nodes) {
    const auto agent = agents.find(name);
    node.set_connected(agent != agents.end() && agent->second.stream.has_value());
    if (agent != agents.end()) node.set_leftovers(agent->second.strange.size());
    all.push_back(std::move(node));
  }
  return all;
}

absl::StatusOr<Core::LogSource> Core::Impl::FindLog(const v1::ReadLogRequest& request) const {
  const std::string name = OneLine(request.job(), kMaxJobNameBytes);
  const uint32_t rank = request.rank();
  const auto found = state.jobs.find(request.job());
  if (found == state.jobs.end()) return absl::FailedPreconditionError("no job " + name);
  const JobState& job = found->second;
  // An agent of root would not know whose rights to read with.
  if (job.user.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", name, " was started by 'cadre run', not submitted to the cluster: ",
        "its logs are on ", NodesText(job.generation.members), ", in ", job.spec.logs().dir(), "/",
        RunSubdirectory(name, job.run), "/", GenerationSubdirectory(request.generation())));
  }
  if (!request.run().empty() && request.run() != job.run) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", name, " was submitted again; what it wrote before is on its nodes, in ",
        job.spec.logs().dir()));
  }
  const std::vector<MemberState>& members = job.generation.members;
  // Ranks are sticky, so that an earlier generation's are mostly found as well.
  const auto member = std::find_if(members.begin(), members.end(), [rank](const MemberState& m) {
    return rank >= m.first_rank && rank - m.first_rank < m.slots;
  });
  if (member == members.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", name, " has no rank ", rank, "; it has ",
                     Count(job.generation.workers.size(), "worker"), " so far"));
  }
  const auto agent = agents.find(member->node);
  if (agent == agents.end() || !agent->second.stream.has_value()) {
    return absl::UnavailableError(absl::StrCat("rank ", rank, " is on node ", member->node,
                                               ", which has no agent now; its logs are there in ",
                                               job.spec.logs().dir()));
  }
  LogSource source;
  source.stream = *agent->second.stream;
  source.read.set_job(found->first);
  source.read.set_user(job.user);
  source.read.set_dir(job.spec.logs().dir());
  source.read.set_generation(request.generation());
  source.read.set_rank(rank);
  source.read.set_run(job.run);
  const auto& parts = state.cluster.parts;
  source.ended =
      HasEnded(job.phase) && std::none_of(parts.begin(), parts.end(), [&](const auto& part) {
        return part.second.part.job() == found->first && part.second.part.node() == member->node;
      });
  return source;
}

}  // namespace cadre
