// The oracle's view of jobs, from the records of the core.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/simulation/oracle.h"

namespace cadre::simulation {
namespace {

// What the clocks of a history may be wrong by.
constexpr double kDrift = 1.03;

// It is some worker's end, as its agent saw it.
bool IsWorkersOwn(const v1::Failure& failure) {
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
  job.looked_at.clear();
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
    // One that ends while the core was not stepped just before lasts reconnect_grace longer, so
    // that what lies unread is read first.
    const absl::Duration lease = (plan_.Has(Fault::kServerPaused) ? 2 : 1) * plan_.server.lease +
                                 plan_.server.reconnect_grace;
    Holds(running - streams_[*node.stream].heard_at <= lease * kDrift,
          absl::StrCat("I3: ", member.node(), " is in ", key.Text(), " after its lease"));
  }
}

// A round of the survivors does not wait for others.
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
        absl::StrCat("I5: the server can tell nobody anything, and ", removed.node(),
                     " is lost: ", removed.reason()));
  // The core cannot tell a shorter pause from none.
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
    // How long its workers wait for an agent does not depend on the server.
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
  if (!order.has_root_cause() || !IsWorkersOwn(order.root_cause())) return;
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
  // Who hangs is told from where all ranks are, not from who was reported first.
  if (failure.cause() == v1::HANG) return CheckHang(name, failure.rank());
  const std::pair<std::string, uint32_t> culprit = {failure.node(), failure.local_rank()};
  Holds(job.first_failure == std::optional(culprit),
        absl::StrCat("I8: ", failure.message(), ": not the first failure that was reported"));
}

// A step in these histories is the moment at which it was reported.
void Oracle::CheckHang(const std::string& name, uint32_t named) {
  const JobView& job = jobs_[name];
  const GenerationKey key{server_id_, name, job.generation};
  auto& workers = workers_[key];
  const absl::Duration silent = world_.now() - workers[named].reported_at;
  Holds(silent * kDrift >= absl::Seconds(job.spec->timeouts().progress().seconds()),
        absl::StrCat("I8: rank ", named, " of ", key.Text(), " hangs after ",
                     absl::FormatDuration(silent)));
  for (const uint32_t rank : job.looked_at) {
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
  // Of short pauses the core knows nothing.
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

// Where nothing goes wrong, and enough nodes come, a job succeeds at once.
void Oracle::CheckFaultless(const std::string& name, const v1::Verdict& verdict) {
  const JobView& job = jobs_[name];
  uint32_t nodes = 0;
  for (const NodePlan& node : plan_.nodes) nodes += plan_.jobs[node.job].name() == name;
  const uint32_t unit = std::max(1u, job.spec->elastic().unit());
  const bool enough =
      std::min(nodes, job.spec->nodes().max()) / unit * unit >= job.spec->nodes().min();
  // One that came after the end begins the job anew, alone.
  const bool again = job.runs > 1;
  if (!enough || again || job.spec->timeouts().has_total()) return;
  Holds(verdict.outcome() == v1::SUCCEEDED && verdict.restarts() == 0,
        absl::StrCat("I6: nothing went wrong, and ", name, " ended: ", verdict.message()));
}

}  // namespace cadre::simulation
