#include "rendezvous/job/deadlines.h"

#include <algorithm>
#include <set>

#include "rendezvous/job/restart.h"
#include "rendezvous/state/policy.h"

namespace cadre::job {
namespace {

// Until when nothing fails because nodes do not come or start: they have a lease to find a server
// that began anew, or could say nothing for a while.
MonoTime PatientUntil(const View& view) {
  return view.context.clock.spoke_since() + view.context.config.lease;
}

bool IsOfBefore(MonoTime moment, const View& view) {
  return moment < view.context.clock.spoke_since();
}

}  // namespace

MonoTime TotalDeadline(const View& view) {
  return view.context.clock.FromRecord(view.job.saved.times().created_us()) +
         view.job.policy.total_timeout;
}

MonoTime StartDeadline(const View& view) {
  const MonoTime ordered = view.live.ordered_at;
  const MonoTime until = ordered + view.job.policy.start_timeout;
  return IsOfBefore(ordered, view) ? std::max(until, PatientUntil(view)) : until;
}

MonoTime StopDeadline(const View& view) {
  return view.live.ordered_at + view.job.policy.stop_grace + view.context.config.stop_margin;
}

MonoTime AbsenceDeadline(const View& view) {
  const Suspicion& suspicion = view.live.suspicion;
  const bool asks = AllStarted(view.job.generation) && !suspicion.inquiry.has_value() &&
                    suspicion.asked_for_absent != view.job.generation.number() &&
                    AwaitsOthers(view);
  return asks ? StartDeadline(view) : MonoTime::Never();
}

MonoTime PhaseDeadline(const View& view) {
  const Suspicion& suspicion = view.live.suspicion;
  switch (view.job.phase()) {
    case v1::GATHERING:
      return std::min(
          TotalDeadline(view),
          DecideFormation(GatheringOf(view), view.job.policy, view.context.clock.now()).again_at);
    case v1::RUNNING:
      return std::min(
          {TotalDeadline(view),
           AllStarted(view.job.generation) ? MonoTime::Never() : StartDeadline(view),
           AbsenceDeadline(view),
           suspicion.inquiry.has_value() ? suspicion.inquiry->deadline : MonoTime::Never(),
           suspicion.look.has_value() ? suspicion.look->deadline : MonoTime::Never(),
           suspicion.given_up.has_value() ? suspicion.given_up->believed_at : MonoTime::Never(),
           suspicion.victims.failures.empty() || suspicion.inquiry.has_value()
               ? MonoTime::Never()
               : suspicion.victims.believed_at});
    case v1::STOPPING:
      return IsSettled(view.job.generation) ? StopDeadline(view)
                                            : std::min(StopDeadline(view), TotalDeadline(view));
    default:
      return MonoTime::Never();
  }
}

bool AllStarted(const state::Generation& generation) {
  return generation.started == generation.world_size();
}

bool IsSettled(const state::Generation& generation) {
  return generation.root_cause() != nullptr && HasLastWord(*generation.root_cause());
}

bool AwaitsOthers(const View& view) {
  const auto& generations = view.job.saved.timeline().generations();
  return !generations.empty() && generations.rbegin()->rejoined() > 0 &&
         view.live.progress.FirstProgressUs(view.job.generation.number()) == 0;
}

bool CanGrow(const View& view) {
  return view.job.generation.succeeded == 0 &&
         view.job.policy.SizeFor(view.live.connections.ready()) > view.job.generation.nodes();
}

bool MayAskForCheckpoint(const state::Job& job) {
  // What can rejoin has nothing to lose, and is not asked to leave.
  return job.policy.scale_up == v1::ElasticPolicy::AT_CHECKPOINT && !job.policy.in_place &&
         AllStarted(job.generation) && job.generation.nodes() < job.policy.target();
}

bool WantsCheckpoint(const View& view) {
  return view.job.phase() == v1::RUNNING && MayAskForCheckpoint(view.job) && CanGrow(view);
}

bool KnowsWhoComes(const state::Job& job) {
  return !job.saved.expected_nodes().empty() &&
         (job.user().empty() || job.saved.generations() == 0);
}

bool IsOwedNodes(const View& view) {
  const state::Job& job = view.job;
  if (job.user().empty() || job.saved.generations() == 0) return false;
  // Where it could not begin it never gets a part, and there may be too few others for good.
  const auto& avoided = job.saved.submission().avoided();
  if (std::any_of(avoided.begin(), avoided.end(),
                  [](const v1::AvoidedNode& node) { return node.unfit(); })) {
    return false;
  }
  const auto& parts = view.context.state.cluster.parts;
  const auto has = std::count_if(parts.begin(), parts.end(), [&](const auto& part) {
    return part.second.part().job() == job.name() && !part.second.taken_back();
  });
  return job.policy.SizeFor(static_cast<uint32_t>(has)) == 0;
}

Gathering GatheringOf(const View& view) {
  const state::Job& job = view.job;
  const Connections& connections = view.live.connections;
  const step::LeaseClock& clock = view.context.clock;
  Gathering gathering;
  gathering.present = connections.ready();
  // Others only take the places of those that are lost.
  if (job.policy.scale_up == v1::ElasticPolicy::NEVER && job.generation.nodes() > 0) {
    gathering.most = job.generation.nodes();
  }
  gathering.since = clock.FromRecord(job.saved.times().gathering_us());
  gathering.granted = view.live.granted_at;
  if (IsOfBefore(gathering.since, view)) {
    gathering.since = std::max(gathering.since, PatientUntil(view) + -job.policy.join_timeout);
  }
  gathering.not_before = clock.FromRecord(job.saved.times().not_before_us());
  // Those who were in have the window to come back to a server that began anew.
  gathering.last_join =
      std::max(clock.FromRecord(job.saved.times().last_join_us()), clock.spoke_since());
  for (const saved::Member& member : job.generation.saved.members())
    gathering.survivors += !member.lost();
  // Looked for one by one only when they can be complete: a large job gathers in linear time.
  gathering.survivors_in =
      connections.ready() >= gathering.survivors &&
      std::all_of(
          job.generation.saved.members().begin(), job.generation.saved.members().end(),
          [&](const saved::Member& m) { return m.lost() || connections.IsReady(m.node()); });
  if (KnowsWhoComes(job) &&
      connections.ready() >= static_cast<size_t>(job.saved.expected_nodes_size())) {
    std::set<std::string> here;
    for (const std::string& name : ReadyNodes(view)) {
      here.insert(name);
      here.insert(job.nodes.at(name).node().host());
    }
    gathering.all_expected =
        std::all_of(job.saved.expected_nodes().begin(), job.saved.expected_nodes().end(),
                    [&here](const std::string& name) { return here.count(name) != 0; });
  }
  return gathering;
}

std::vector<std::string> ReadyNodes(const View& view) {
  std::vector<std::string> ready;
  for (const auto& [name, node] : view.job.nodes) {
    if (view.live.connections.IsReady(name)) ready.push_back(name);
  }
  return ready;
}

}  // namespace cadre::job
