#include "rendezvous/job/job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/duration.h"
#include "base/exit_codes.h"
#include "base/text.h"
#include "rendezvous/job/report.h"
#include "rendezvous/job/status.h"
#include "rendezvous/state/policy.h"

namespace cadre::job {
namespace {

// The nodes of a larger job hear of changes this often at most: with each worker's start said to
// each node, what is sent grows with the square of the nodes.
constexpr size_t kMaxNodesToldAtOnce = 16;
constexpr absl::Duration kPushInterval = absl::Milliseconds(200);
// And those of a very large one once in this for each of them, so that a server sends 4,000 such
// messages a second at most.
constexpr absl::Duration kPushIntervalPerNode = absl::Microseconds(250);
// Of what changed only in its progress, nodes are told this often, and those of a large job less.
constexpr absl::Duration kProgressInterval = absl::Seconds(1);
constexpr absl::Duration kLargeProgressInterval = absl::Seconds(5);

// When its nodes are to be told of what changed, on the host's clock: messages are spared.
MonoTime PushAt(const Live& live, MonoTime now) {
  const size_t nodes = live.connections.all().size();
  const bool large = nodes > kMaxNodesToldAtOnce;
  const absl::Duration least =
      std::max(kPushInterval, kPushIntervalPerNode * static_cast<int64_t>(nodes));
  if (live.push.changed) return large ? live.push.last + least : now;
  if (!live.push.progressed) return MonoTime::Never();
  return live.push.last + (large ? std::max(kLargeProgressInterval, least) : kProgressInterval);
}

}  // namespace

Job::Job(std::string name, step::Context* context, const ClusterWaits* cluster_waits,
         ForCluster* for_cluster)
    : name_(std::move(name)),
      context_(*context),
      state_(context->state.jobs.at(name_)),
      cluster_waits_(*cluster_waits),
      for_cluster_(*for_cluster),
      live_(context, state_),
      out_(name_, state_, live_.connections, &context->out) {}

void Job::Restore() {
  live_.ordered_at = state_.phase() == v1::STOPPING
                         ? context_.clock.now()
                         : context_.clock.FromRecord(state_.generation.saved.formed_us());
  // Whether its workers were asked is not known. What they were asked for is no failure.
  if (MayAskForCheckpoint(state_)) live_.checkpoint_asked = state_.generation.number();
  live_.progress.BeginAt(context_.now);
  for (const auto& [node, known] : state_.nodes) live_.connections.Restore(node);
  AwaitAbsent();
}

void Job::AwaitAbsent() {
  live_.connections.AwaitAbsent(state_.nodes);
  Touch(true);
}

void Job::Refused(const std::string& why) {
  live_.refusal = why;
  Touch(true);
}

void Job::Said(const std::string& node, const v1::NodeMessage& message) {
  live_.connections.Heard(node);
  if (message.has_store()) return StoreCalled(keyspace::Asker{0, node}, message.store());
  if (state::HasEnded(state_.phase())) return;
  switch (message.body_case()) {
    case v1::NodeMessage::kWorkerStarted:
    case v1::NodeMessage::kWorkerExited:
    case v1::NodeMessage::kWorkerGaveUp:
    case v1::NodeMessage::kWorkerRemains:
    case v1::NodeMessage::kImports:
    case v1::NodeMessage::kNodeStopped:
    case v1::NodeMessage::kProgress:
    case v1::NodeMessage::kEvidence:
      return GenerationSaid(node, message);
    case v1::NodeMessage::kLeave: {
      const v1::FailureCause cause = message.leave().cause();
      const bool known = cause == v1::PREEMPTED || cause == v1::CANCELLED;
      const std::string reason = OneLine(message.leave().reason(), state::kMaxNodeTextBytes);
      return RemoveNode(node, known ? cause : v1::NODE_LOST, v1::NodeRemoved::LEFT,
                        reason.empty() ? "it left" : absl::StrCat("it left: ", reason),
                        absl::OkStatus());
    }
    case v1::NodeMessage::kCancel:
      return Cancel(message.cancel().reason(), message.cancel().signal(),
                    message.cancel().cause() == v1::PREEMPTED ? v1::PREEMPTED : v1::CANCELLED,
                    message.cancel().at_once());
    case v1::NodeMessage::kRenew: {
      if (message.renew().has_usage()) {
        live_.usage.Note(node, message.renew().usage(),
                         context_.now.micros() - state_.saved.times().created_us());
      }
      if (message.renew().number() == 0) return;
      v1::ServerMessage renewed = out_.Message();
      renewed.mutable_renewed()->set_number(message.renew().number());
      return out_.SendTo(node, std::move(renewed));
    }
    case v1::NodeMessage::kJoin:
    case v1::NodeMessage::kStore:
    case v1::NodeMessage::kAgent:
    case v1::NodeMessage::kStacks:  // the host's
      return;
    case v1::NodeMessage::BODY_NOT_SET:
      // A newer agent may say what this server does not know yet.
      return out_.Note(absl::StrCat("node ", node, " sent an unknown message"));
  }
}

void Job::StreamClosed(const std::string& node) {
  if (state::HasEnded(state_.phase())) return live_.connections.Erase(node);
  live_.connections.Detach(node, FromProto(state_.nodes.at(node).node().adopt_timeout()));
  Touch(false);
}

void Job::StoreCalled(const keyspace::Asker& asker, const v1::StoreRequest& request) {
  live_.store.Execute(asker, request);
  Touch(false);
}

void Job::CallDropped(CallId call) {
  live_.store.ForgetCall(call);
  Touch(false);
}

void Job::Granted() {
  live_.granted_at = context_.clock.now();
  live_.gives_back = false;
  Touch(true);
}

void Job::LauncherEnded(const std::string& node, const std::string& how) {
  if (live_.connections.Find(node) != nullptr) live_.connections.SetLauncherEnd(node, how);
  Touch(true);
}

void Job::CannotBegin(const std::string& why, bool try_later) {
  End(v1::FAILED, try_later ? kExitTryLater : kExitBadSpec, why,
      PlainFailure(v1::EXEC_FAILED, "", 0, why));
}

void Job::Advance() {
  live_.store.Expire();
  while (AdvancePhase()) {
  }
  PendingPush& push = live_.push;
  const MonoTime now = context_.now;
  if (state::HasEnded(state_.phase())) push.changed = push.progressed = false;
  // What cannot go out would only pile up.
  if (context_.clock.can_save() && PushAt(live_, now) <= now) {
    v1::ServerMessage message = out_.Message();
    *message.mutable_status() = StatusOf(name_, view(), cluster_waits_(state_, context_.now),
                                         context_.now, Shown::kToAgents);
    if (message.status().checkpoint_wanted()) live_.checkpoint_asked = state_.generation.number();
    out_.SendToAll(message);
    push.changed = push.progressed = false;
    push.last = now;
  }
  live_.deadline = std::min({PhaseDeadline(view()), live_.store.NextDeadline(),
                             context_.clock.FromHost(PushAt(live_, now))});
  live_.touched = false;
}

void Job::Touch(bool changed) {
  live_.touched = true;
  if (changed) live_.push.changed = true;
}

}  // namespace cadre::job
