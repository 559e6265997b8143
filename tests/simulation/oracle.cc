#include "tests/simulation/oracle.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace cadre::simulation {

Oracle::Oracle(World& world, const Plan& plan)
    : world_(world), plan_(plan), alive_(plan.nodes.size()) {}

void Oracle::Break(std::string what) {
  world_.Note(99, 0, [&] { return absl::StrCat("BROKEN: ", what); });
  if (broken_.empty()) broken_ = std::move(what);
}

bool Oracle::Holds(bool condition, absl::string_view what) {
  if (!condition) Break(std::string(what));
  return condition;
}

void Oracle::ServerStarted(uint64_t server_id, const Core& core, absl::Duration running) {
  ++tally_.server_starts;
  if (state_at_death_.has_value() && state_at_death_->first == server_id) {
    Holds(state_at_death_->second == core.DebugString(),
          "I4: the server does not find what it had saved");
  }
  state_at_death_.reset();
  server_id_ = server_id;
  cannot_save_since_.reset();
  streams_.clear();
  nodes_.clear();
  std::map<std::string, JobView> before = std::move(jobs_);
  jobs_.clear();
  for (const v1::Record& record : core.Snapshot()) {
    for (const saved::WholeJob& whole : record.snapshot().jobs()) {
      FindSaved(whole, before[record.job()].verdict, running);
    }
  }
  for (const v1::JobSpec& spec : plan_.jobs) jobs_[spec.name()].spec = &spec;
}

void Oracle::FindSaved(const saved::WholeJob& whole, const std::optional<std::string>& verdict,
                       absl::Duration running) {
  const std::string& name = whole.job().spec().name();
  JobView& job = jobs_[name];
  job.verdict = verdict;
  job.ended = whole.job().has_verdict();
  job.generation = whole.generation().number();
  job.restart_count = whole.job().restarts().all();
  job.stopping_at = running;
  job.stopped = whole.job().phase() != v1::RUNNING;
  for (const saved::Member& member : whole.generation().members()) {
    job.members[member.node()] = {member.first_rank(), member.slots(), member.lost()};
  }
  Holds(job.generation >= Newest(name).number,
        absl::StrCat("I4: ", Newest(name).Text(), " was announced; the new server knows only ",
                     job.generation));
}

void Oracle::ServerDied(const Core& core, bool saved) {
  if (saved) state_at_death_ = {server_id_, core.DebugString()};
}

void Oracle::ServerCanSave(bool can, absl::Duration running) {
  if (!can) {
    cannot_save_since_ = running;
    return;
  }
  // What was decided meanwhile is sent only now, and nodes that were away can come back only now.
  for (auto& [name, job] : jobs_) {
    if (job.stopping_at >= *cannot_save_since_) job.stopping_at = running;
    if (job.formed_at >= *cannot_save_since_) job.formed_at = running;
  }
  for (auto& [name, node] : nodes_) {
    if (node.stream.has_value()) continue;
    node.gone_at = running;
    node.gone_since = world_.now();
  }
  cannot_save_since_.reset();
}

void Oracle::Arrived(StreamId stream, MonoTime at) {
  std::vector<MonoTime>& arrivals = streams_[stream].arrivals;
  const MonoTime old = at + -plan_.server.lease;
  arrivals.erase(arrivals.begin(), std::find_if(arrivals.begin(), arrivals.end(),
                                                [old](MonoTime when) { return when >= old; }));
  arrivals.push_back(at);
}

void Oracle::BeforeStep(const Event& event) {
  const auto* said = std::get_if<NodeMessageReceived>(&event);
  if (said == nullptr) return;
  const v1::NodeMessage& message = said->message;
  world_.Note(10, said->stream.value << 8 | message.body_case(), [&] {
    return absl::StrCat("server reads stream ", said->stream.value, ": ",
                        message.has_renew() ? "renew" : message.ShortDebugString());
  });
  StreamView& stream = streams_[said->stream];
  if (message.has_join()) {
    stream.job = message.job();
    stream.node = message.join().node();
  }
  JobView& job = jobs_[stream.job];
  if (!stream.attached || job.stopped || job.ended || message.generation() != job.generation ||
      message.server_id() != server_id_) {
    return;
  }
  // When a worker gives up, the server asks for the reason, unless it has stopped the generation at
  // once; a worker that exits meanwhile is the reason.
  if (message.has_worker_exited() &&
      message.worker_exited().cause() != v1::FAILURE_CAUSE_UNSPECIFIED &&
      (!job.first_failure.has_value() || job.first_gave_up)) {
    job.first_failure = {stream.node, message.worker_exited().local_rank()};
    job.first_gave_up = false;
  }
  if (message.has_worker_gave_up() && !job.first_failure.has_value()) {
    job.first_failure = {stream.node, message.worker_gave_up().local_rank()};
    job.first_gave_up = true;
  }
  const auto member = job.members.find(stream.node);
  if (member == job.members.end()) return;
  for (const v1::RankEvidence& rank : message.evidence().ranks()) {
    job.reported.insert(member->second.first_rank + static_cast<uint32_t>(rank.local_rank()));
  }
}

void Oracle::AfterStep(const Core& core, const Event& event, const Effects& effects,
                       absl::Duration running) {
  if (const auto* closed = std::get_if<StreamClosed>(&event)) {
    world_.Note(11, closed->stream.value, [&] {
      return absl::StrCat("server sees the end of stream ", closed->stream.value);
    });
    Detach(closed->stream, running);
    streams_.erase(closed->stream);
  }
  if (const auto* said = std::get_if<NodeMessageReceived>(&event)) {
    streams_[said->stream].heard_at = running;
  }
  for (const Note& note : effects.notes) {
    world_.Note(12, 0, [&] { return absl::StrCat("  server: ", note.job, ": ", note.text); });
  }
  WatchWelcomes(effects);
  for (const v1::Record& record : effects.append) {
    world_.Note(13, record.body_case(),
                [&] { return absl::StrCat("  record ", record.ShortDebugString()); });
    WatchRecord(record, running);
  }
  for (const CloseStream& close : effects.close) Detach(close.stream, running);
  const absl::Status holds = core.CheckInvariants();
  Holds(holds.ok(), absl::StrCat("I9: ", holds.message()));
}

void Oracle::WatchWelcomes(const Effects& effects) {
  for (const SendToStream& send : effects.send) {
    if (!send.message.has_welcome()) continue;
    StreamView& stream = streams_[send.stream];
    stream.attached = true;
    NodeView& node = nodes_[{stream.job, stream.node}];
    node.stream = send.stream;
    node.attached_at = world_.now();
  }
}

void Oracle::Detach(StreamId stream, absl::Duration running) {
  const auto found = streams_.find(stream);
  if (found == streams_.end() || !found->second.attached) return;
  found->second.attached = false;
  NodeView& node = nodes_[{found->second.job, found->second.node}];
  if (!(node.stream == std::optional<StreamId>(stream))) return;
  node.stream.reset();
  node.gone_at = running;
  node.gone_since = world_.now();
}

void Oracle::Sent(const SendToStream& send) {
  world_.Note(14, send.stream.value << 8 | send.message.body_case(), [&] {
    return send.message.has_status() ? absl::StrCat("  to stream ", send.stream.value, ": status")
                                     : absl::StrCat("  to stream ", send.stream.value, ": ",
                                                    send.message.ShortDebugString());
  });
  if (send.message.has_assign()) CheckAssign(streams_[send.stream].node, send.message);
  if (!send.message.has_finished()) return;
  JobView& job = jobs_[send.message.job()];
  const std::string verdict = send.message.finished().verdict().ShortDebugString();
  Holds(!job.verdict.has_value() || *job.verdict == verdict,
        absl::StrCat("I4: two verdicts: ", job.verdict.value_or(""), " and ", verdict));
  job.verdict = verdict;
}

void Oracle::CheckAssign(const std::string& node, const v1::ServerMessage& message) {
  const v1::Assign& assign = message.assign();
  const GenerationKey key{server_id_, message.job(), message.generation()};
  const std::string master = absl::StrCat(assign.master_addr(), ":", assign.master_port());
  const auto [at, first] = announced_.insert({key, {}});
  Announced& announced = at->second;
  if (first) {
    announced.world_size = assign.world_size();
    announced.nodes = assign.nodes();
    announced.master = master;
    announced.restart_count = assign.restart_count();
    const auto next = std::next(at);
    Holds(next == announced_.end() || next->first.server_id != key.server_id ||
              next->first.job != key.job,
          absl::StrCat("I1: ", key.Text(), " comes after a later one"));
  }
  Holds(announced.world_size == assign.world_size() && announced.nodes == assign.nodes() &&
            announced.master == master && announced.restart_count == assign.restart_count(),
        absl::StrCat("I2: the members of ", key.Text(), " are told different things"));
  const std::tuple<std::string, uint32_t, uint32_t> place = {node, assign.first_rank(),
                                                             assign.local_world_size()};
  const auto [seat, taken] = announced.assigned.insert({assign.node_rank(), place});
  Holds(taken || seat->second == place,
        absl::StrCat("I2: node rank ", assign.node_rank(), " of ", key.Text(), " is given to ",
                     std::get<0>(seat->second), " and to ", node, ", or with other ranks"));
  uint32_t next_rank = 0;
  for (const auto& [rank, other] : announced.assigned) {
    const auto& [other_node, other_first, slots] = other;
    Holds(other_first >= next_rank && rank < announced.nodes,
          absl::StrCat("I2: ranks of ", key.Text(), " overlap at ", other_node));
    next_rank = other_first + slots;
  }
  Holds(next_rank <= announced.world_size,
        absl::StrCat("I2: rank ", next_rank - 1, " is outside the world of ", key.Text()));
}

GenerationKey Oracle::Newest(const std::string& job) const {
  auto after = announced_.lower_bound({server_id_, job, ~uint64_t{0}});
  if (after != announced_.begin()) {
    --after;
    if (after->first.server_id == server_id_ && after->first.job == job) return after->first;
  }
  return {server_id_, job, 0};
}

void Oracle::WorkersStart(int node, const GenerationKey& generation, const v1::Assign& assign) {
  Holds(alive_[node] == 0,
        absl::StrCat("I1: node ", NameOfNode(node), " starts ", generation.Text(), " while ",
                     alive_[node], " workers of an older one live"));
  Holds(announced_.count(generation) == 1,
        absl::StrCat("I1: node ", NameOfNode(node), " starts ", generation.Text(),
                     ", which was never announced"));
  for (uint32_t i = 0; i < assign.local_world_size(); ++i) {
    const auto [at, first] =
        workers_[generation].insert({assign.first_rank() + i, WorkerTruth{node}});
    // The order to start them was under way when their node was given up.
    at->second.given_up = given_up_.count({generation, node}) > 0;
    Holds(first,
          absl::StrCat("I1: rank ", at->first, " of ", generation.Text(), " is started twice"));
    ++alive_[node];
  }
}

WorkerTruth& Oracle::Worker(const GenerationKey& generation, uint32_t rank) {
  return workers_[generation][rank];
}

void Oracle::WorkerGone(const GenerationKey& generation, uint32_t rank) {
  WorkerTruth& worker = workers_[generation][rank];
  if (!std::exchange(worker.alive, false)) return;
  --alive_[worker.node];
}

void Oracle::AgentLeft(int node, const agent::Exit& exit) {
  world_.Note(20, exit.status, [&] {
    return absl::StrCat("agent ", NameOfNode(node), " leaves with ", exit.status, ": ",
                        exit.message, exit.verdict.message());
  });
  Holds(!exit.message.empty() || alive_[node] == 0,
        absl::StrCat("I7: agent ", NameOfNode(node), " leaves workers behind and does not say so"));
  const bool succeeded = exit.verdict.outcome() == v1::SUCCEEDED;
  Holds((exit.status == 0) == succeeded,
        absl::StrCat("agent ", NameOfNode(node), " leaves with ", exit.status, " after ",
                     v1::JobPhase_Name(exit.verdict.outcome())));
  Holds(
      exit.status == 0 || !exit.message.empty() || !exit.verdict.message().empty() ||
          exit.status > 128,
      absl::StrCat("I6: agent ", NameOfNode(node), " leaves with ", exit.status, " and no reason"));
}

std::string NameOfNode(int node) { return absl::StrCat("n", node); }

int NodeOfName(absl::string_view name) {
  int node = -1;
  return absl::SimpleAtoi(name.substr(1), &node) ? node : -1;
}

// The oracle's view of jobs, built from the records of the core.

namespace {

// The largest deviation of two clocks of a history, as a factor.
constexpr double kDrift = 1.03;

// Whether the failure is a worker's end, as its agent saw it.
bool IsReservedVariable(const v1::Failure& failure) {
  return failure.rank() >= 0 && failure.cause() != v1::START_TIMEOUT &&
         failure.cause() != v1::NODE_LOST;
}

}  // namespace

void Oracle::WatchRecord(const v1::Record& record, absl::Duration running) {
  const std::string& name = record.job();
  JobView& job = jobs_[name];
  if (record.has_job_created()) {
    Holds(job.ended, absl::StrCat("I1: two runs of ", name, " at once"));
    job.ended = false;
    ++job.runs;
    job.verdict.reset();
    job.members.clear();
    job.restart_count = 0;
    return;
  }
  Holds(!job.ended, absl::StrCat("a record after the end of ", name));
  if (record.has_generation_formed()) {
    OnFormed(name, record.generation_formed(), running);
  } else if (record.has_node_removed()) {
    OnRemoved(name, record.node_removed(), running);
  } else if (record.has_stop_ordered()) {
    OnStopOrdered(name, record.stop_ordered(), running);
  } else if (record.has_gathering_began()) {
    Holds(record.gathering_began().restart_count() == job.restart_count + 1,
          absl::StrCat("restarts of ", name, " are miscounted"));
    job.restart_count = record.gathering_began().restart_count();
    Holds(!record.gathering_began().got_on() ||
              record.gathering_began().not_before_us() <= record.gathering_began().at_us(),
          absl::StrCat(name, " waits after a generation that got on"));
    ++tally_.restarts;
  } else if (record.has_job_ended()) {
    OnEnded(name, record.job_ended().verdict());
  }
}

void Oracle::OnFormed(const std::string& name, const v1::GenerationFormed& record,
                      absl::Duration running) {
  const saved::Generation& formed = record.generation();
  ++tally_.generations;
  JobView& job = jobs_[name];
  CheckOldWorkers(name, formed);
  CheckFormed(name, formed, running);
  CheckSettleWindow(name, job, record.why());
  job.generation = formed.number();
  job.stopped = false;
  job.formed_at = running;
  job.first_failure.reset();
  job.first_gave_up = false;
  job.reported.clear();
  job.members.clear();
  for (const saved::Member& member : formed.members()) {
    job.members[member.node()] = {member.first_rank(), member.slots(), false};
  }
}

void Oracle::CheckOldWorkers(const std::string& name, const saved::Generation& formed) {
  const GenerationKey first{server_id_, name, 0}, next{server_id_, name, formed.number()};
  for (auto of = workers_.lower_bound(first); of != workers_.end() && of->first < next; ++of) {
    for (const auto& [rank, worker] : of->second) {
      Holds(!worker.alive || worker.given_up,
            absl::StrCat("I1: ", next.Text(), " forms while rank ", rank, " of ", of->first.Text(),
                         " lives on ", NameOfNode(worker.node)));
    }
  }
  for (const saved::Member& member : formed.members()) {
    Holds(alive_[NodeOfName(member.node())] == 0,
          absl::StrCat("I1: ", member.node(), " is in ", next.Text(), " and has old workers"));
  }
}

void Oracle::CheckFormed(const std::string& name, const saved::Generation& formed,
                         absl::Duration running) {
  const JobView& job = jobs_[name];
  const GenerationKey key{server_id_, name, formed.number()};
  Holds(formed.number() > job.generation && announced_.count(key) == 0,
        absl::StrCat("I1: ", key.Text(), " was there before"));
  const v1::NodeRange& nodes = job.spec->nodes();
  const uint32_t size = formed.members_size();
  Holds(size >= nodes.min() && size <= nodes.max(),
        absl::StrCat("I2: ", key.Text(), " has ", size, " nodes"));
  Holds(formed.restart_count() == job.restart_count,
        absl::StrCat("restarts of ", name, " are miscounted"));
  uint32_t next_rank = 0;
  for (const saved::Member& member : formed.members()) {
    Holds(member.first_rank() == next_rank, absl::StrCat("I2: a gap in the ranks of ", key.Text()));
    next_rank += member.slots();
    const NodeView& node = nodes_[{name, member.node()}];
    if (!Holds(node.stream.has_value(),
               absl::StrCat("I3: ", member.node(), " is in ", key.Text(), " and not connected"))) {
      continue;
    }
    // A lease that ends while the core was paused just before lasts reconnect_grace longer, so that
    // unread messages are read first.
    const absl::Duration lease = (plan_.Has(Fault::kServerPaused) ? 2 : 1) * plan_.server.lease +
                                 plan_.server.reconnect_grace;
    Holds(running - streams_[*node.stream].heard_at <= lease * kDrift,
          absl::StrCat("I3: ", member.node(), " is in ", key.Text(), " after its lease"));
  }
}

// A generation of survivors does not wait for other nodes.
void Oracle::CheckSettleWindow(const std::string& name, const JobView& job,
                               v1::GenerationFormed::Why why) {
  bool lost = false, all_in = true, any = false;
  for (const auto& [node, member] : job.members) {
    lost = lost || member.lost;
    if (member.lost) continue;
    any = true;
    const NodeView& view = nodes_[{name, node}];
    all_in = all_in && view.stream.has_value() && view.attached_at < world_.now();
  }
  if (why == v1::GenerationFormed::SURVIVORS && lost) ++tally_.degraded_rounds;
  Holds(!any || !all_in || why != v1::GenerationFormed::SETTLED,
        absl::StrCat("the survivors of ", name, " were in and waited for the settle window"));
}

void Oracle::OnRemoved(const std::string& name, const v1::NodeRemoved& removed,
                       absl::Duration running) {
  JobView& job = jobs_[name];
  const auto member = job.members.find(removed.node());
  if (member != job.members.end()) member->second.lost = true;
  const int number = NodeOfName(removed.node());
  given_up_.insert({{server_id_, name, job.generation}, number});
  const GenerationKey first{server_id_, name, 0};
  for (auto of = workers_.lower_bound(first);
       of != workers_.end() && of->first.server_id == server_id_ && of->first.job == name; ++of) {
    for (auto& [rank, worker] : of->second) {
      if (worker.node == number) worker.given_up = true;
    }
  }
  if (removed.cause() == v1::NODE_LOST) CheckLost(name, removed, running);
}

void Oracle::CheckLost(const std::string& name, const v1::NodeRemoved& removed,
                       absl::Duration running) {
  ++tally_.nodes_lost;
  Holds(!plan_.faultless,
        absl::StrCat("I5: ", removed.node(), " is lost and nothing happened: ", removed.reason()));
  const JobView& job = jobs_[name];
  const NodeView& node = nodes_[{name, removed.node()}];
  Holds(!cannot_save_since_.has_value() || removed.how() == v1::NodeRemoved::LEFT ||
            removed.how() == v1::NodeRemoved::SILENT,
        absl::StrCat("I5: the server can send nothing to any node, and ", removed.node(),
                     " is lost: ", removed.reason()));
  // The core cannot detect a shorter pause.
  const absl::Duration unseen_pause = 2 * kDrift * plan_.server.reconnect_grace;
  if (removed.how() == v1::NodeRemoved::DID_NOT_STOP) {
    const absl::Duration had = running - job.stopping_at;
    Holds(had * kDrift >= absl::Seconds(job.spec->timeouts().stop_grace().seconds()),
          absl::StrCat("I5: ", removed.node(), " had ", absl::FormatDuration(had), " to stop"));
  }
  if (removed.how() == v1::NodeRemoved::SILENT && node.stream.has_value()) {
    for (const MonoTime at : streams_[*node.stream].arrivals) {
      const absl::Duration unread = world_.now() - at;
      Holds(unread <= unseen_pause || unread * kDrift >= plan_.server.lease,
            absl::StrCat("I5: ", removed.node(), " is lost for its silence; what it said ",
                         absl::FormatDuration(unread), " ago was not read"));
    }
  }
  if (removed.how() == v1::NodeRemoved::GONE && node.attached_at != MonoTime()) {
    // How long a node's workers wait for an agent does not depend on the server.
    const absl::Duration away = world_.now() - node.gone_since;
    const absl::Duration adoptable = plan_.nodes[NodeOfName(removed.node())].adopt_timeout;
    Holds(away * kDrift >= adoptable,
          absl::StrCat("I5: the workers of ", removed.node(), " could be taken over for ",
                       absl::FormatDuration(adoptable), ", and it was away for ",
                       absl::FormatDuration(away)));
    const bool seemed_in_time = away <= unseen_pause;
    Holds(
        seemed_in_time || (running - node.gone_at) * kDrift >= plan_.server.reconnect_grace,
        absl::StrCat("I5: ", removed.node(), " had ", absl::FormatDuration(running - node.gone_at),
                     " to come back, the server stood still the rest"));
  }
}

void Oracle::OnStopOrdered(const std::string& name, const v1::StopOrdered& order,
                           absl::Duration running) {
  JobView& job = jobs_[name];
  const bool first = !std::exchange(job.stopped, true);
  if (first) job.stopping_at = running;
  if (order.root_cause().cause() == v1::START_TIMEOUT) CheckStartTimeout(name, running);
  if (!order.has_root_cause() || !IsReservedVariable(order.root_cause())) return;
  const v1::Failure& failure = order.root_cause();
  const GenerationKey key{server_id_, name, job.generation};
  const WorkerTruth& worker = workers_[key][failure.rank()];
  // A worker that only gave its generation up did not exit.
  const bool true_story = failure.cause() == v1::HANG ? worker.hangs
                          : !failure.has_exit()
                              ? worker.failed
                              : worker.failed &&
                                    worker.code == static_cast<int>(failure.exit().exit_code()) &&
                                    worker.signal == static_cast<int>(failure.exit().signal());
  Holds(true_story, absl::StrCat("I8: rank ", failure.rank(), " of ", key.Text(),
                                 " did not fail like that: ", failure.message()));
  if (!first) return;
  // Which rank hangs is decided from the progress of all ranks, not from the first report.
  if (failure.cause() == v1::HANG) return CheckHang(name, failure.rank());
  const std::pair<std::string, uint32_t> culprit = {failure.node(), failure.local_rank()};
  Holds(job.first_failure == std::optional(culprit),
        absl::StrCat("I8: ", failure.message(), ": not the first failure that was reported"));
}

// In these histories a step is the moment at which it was reported.
void Oracle::CheckHang(const std::string& name, uint32_t named) {
  const JobView& job = jobs_[name];
  const GenerationKey key{server_id_, name, job.generation};
  auto& workers = workers_[key];
  const absl::Duration silent = world_.now() - workers[named].reported_at;
  Holds(silent * kDrift >= absl::Seconds(job.spec->timeouts().progress().seconds()),
        absl::StrCat("I8: rank ", named, " of ", key.Text(), " hangs after ",
                     absl::FormatDuration(silent)));
  for (const uint32_t rank : job.reported) {
    const WorkerTruth& other = workers[rank];
    Holds(!other.hangs || other.reported_at >= workers[named].reported_at,
          absl::StrCat("I8: rank ", named, " of ", key.Text(), " is named, rank ", rank,
                       " is further behind"));
  }
}

void Oracle::CheckStartTimeout(const std::string& name, absl::Duration running) {
  const JobView& job = jobs_[name];
  Holds(!cannot_save_since_.has_value(),
        absl::StrCat("I5: workers of ", name, " are missed while their nodes are told nothing"));
  // The core does not notice short pauses.
  if (plan_.Has(Fault::kServerPaused)) return;
  const absl::Duration had = running - job.formed_at;
  Holds(had * kDrift >= absl::Seconds(job.spec->timeouts().start().seconds()),
        absl::StrCat("I5: the workers of ", name, " had ", absl::FormatDuration(had), " to start"));
}

void Oracle::OnEnded(const std::string& name, const v1::Verdict& verdict) {
  JobView& job = jobs_[name];
  job.ended = true;
  ++tally_.outcomes[verdict.outcome()];
  const bool succeeded = verdict.outcome() == v1::SUCCEEDED;
  Holds(!verdict.message().empty() && (verdict.exit_status() == 0) == succeeded &&
            verdict.has_root_cause() != succeeded,
        absl::StrCat("I6: ", name, " ends with no reason: ", verdict.ShortDebugString()));
  if (succeeded) {
    const GenerationKey key{server_id_, name, job.generation};
    uint32_t world_size = 0;
    for (const auto& [node, member] : job.members) world_size += member.slots;
    const auto& workers = workers_[key];
    Holds(workers.size() == world_size &&
              std::all_of(workers.begin(), workers.end(),
                          [](const auto& worker) { return worker.second.succeeded; }),
          absl::StrCat("I8: ", name, " succeeded and not all its workers did"));
  }
  if (plan_.faultless) CheckFaultless(name, verdict);
}

// If nothing goes wrong and enough nodes join, a job succeeds without restarts.
void Oracle::CheckFaultless(const std::string& name, const v1::Verdict& verdict) {
  const JobView& job = jobs_[name];
  uint32_t nodes = 0;
  for (const NodePlan& node : plan_.nodes) nodes += plan_.jobs[node.job].name() == name;
  const uint32_t unit = std::max(1u, job.spec->elastic().unit());
  const bool enough =
      std::min(nodes, job.spec->nodes().max()) / unit * unit >= job.spec->nodes().min();
  // A node that joined after the end started the job again, alone.
  const bool again = job.runs > 1;
  if (!enough || again || job.spec->timeouts().has_total()) return;
  Holds(verdict.outcome() == v1::SUCCEEDED && verdict.restarts() == 0,
        absl::StrCat("I6: nothing went wrong, and ", name, " ended: ", verdict.message()));
}

std::string GenerationKey::Text() const {
  return absl::StrCat("generation ", number, " of ", job, " (server ", server_id % 10000, ")");
}

std::string IdOf(const GenerationKey& generation) {
  return absl::StrCat("id of ", generation.Text());
}

int64_t StoreModel::Asked(const GenerationKey& generation, const v1::StoreRequest& request) {
  Generation& of = generations_[generation];
  if (request.has_add()) {
    Sum& sum = of.sums[request.add().key()];
    ++sum.asked;
    return sum.largest;
  }
  if (request.has_barrier()) of.entered[request.barrier().name()].insert(request.rank());
  return 0;
}

std::string StoreModel::Answered(const GenerationKey& generation, uint32_t world_size,
                                 int64_t asked, const v1::StoreRequest& request,
                                 const v1::StoreReply& reply) {
  Generation& of = generations_[generation];
  if (request.has_add()) {
    Sum& sum = of.sums[request.add().key()];
    const int64_t number = reply.number();
    sum.largest = std::max(sum.largest, number);
    if (number <= asked) return absl::StrCat("the sum went back to ", number, " from ", asked);
    if (number > sum.asked) {
      return absl::StrCat("the sum is ", number, " after ", sum.asked, " additions of 1");
    }
    if (!sum.seen.insert(number).second) return absl::StrCat("the sum ", number, " was seen twice");
  }
  if (request.has_set()) of.written[request.set().key()] = request.set().value();
  if (request.has_get() && reply.value() != of.written[request.get().key()]) {
    return absl::StrCat("key ", request.get().key(), " holds ", reply.value(), ", not ",
                        of.written[request.get().key()]);
  }
  if (request.has_get_id() && reply.value() != IdOf(generation)) {
    return absl::StrCat("a foreign id: ", reply.value());
  }
  if (request.has_barrier() && of.entered[request.barrier().name()].size() < world_size) {
    return absl::StrCat("barrier ", request.barrier().name(), " let rank ", request.rank(),
                        " through with ", of.entered[request.barrier().name()].size(), " of ",
                        world_size, " ranks inside");
  }
  return "";
}

}  // namespace cadre::simulation
