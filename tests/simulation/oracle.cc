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
  // What was decided meanwhile is said now, and who was away may come now.
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
  const auto* said = std::get_if<NodeSaid>(&event);
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
  // Of one that gives up the server asks why, unless it has stopped the generation at once; one
  // that exits meanwhile is the answer.
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
    job.looked_at.insert(member->second.first_rank + static_cast<uint32_t>(rank.local_rank()));
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
  if (const auto* said = std::get_if<NodeSaid>(&event)) {
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
    // The order to start them was on its way when their node was given up.
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

}  // namespace cadre::simulation
