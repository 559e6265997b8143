// Methods of AgentCore::Impl: what the agent does on each message from the server.
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/exits.h"
#include "agent/core/impl.h"
#include "base/duration.h"
#include "base/text.h"
#include "rpc/versions.h"

namespace cadre::agent {
namespace {

// Once the server has acted on a Cancel: how long beyond the grace it may wait for other nodes.
constexpr absl::Duration kOtherNodesMargin = absl::Seconds(12);

// To who asks for the stacks of a generation that is not here.
v1::NodeStacks NobodyOf(const GenerationId& asked, uint64_t call) {
  v1::NodeStacks stacks;
  stacks.set_call(call);
  stacks.set_why(absl::StrCat("no worker of generation ", asked.number, " runs there now"));
  return stacks;
}

}  // namespace

v1::NodeMessage MessageOf(const v1::NodeStacks& stacks) {
  v1::NodeMessage message;
  *message.mutable_stacks() = stacks;
  return message;
}

void AgentCore::Impl::OnServerSaid(const v1::ServerMessage& message) {
  switch (message.body_case()) {
    case v1::ServerMessage::kWelcome:
      return OnWelcome(message.welcome());
    case v1::ServerMessage::kRejected:
      return OnRejected(message.rejected());
    case v1::ServerMessage::kAssign:
      return OnAssign(GenerationOf(message), message.assign());
    case v1::ServerMessage::kStop:
      return OnStop(GenerationOf(message), message.stop());
    case v1::ServerMessage::kFinished:
      return OnFinished(message.finished());
    case v1::ServerMessage::kStatus:
      return OnStatus(message.status());
    case v1::ServerMessage::kStore:
      // One that nobody waits for answers a request of a generation that was stopped.
      if (store_calls.Answered(message.store())) out.Add(StoreAnswer{message.store()});
      return;
    case v1::ServerMessage::kRenewed:
      if (session.fence().Answered(message.renewed().number()) && FenceAt() != MonoTime::Never()) {
        out.Add(HoldWorkersUntil{generation.id().number, FenceAt()});
      }
      return;
    case v1::ServerMessage::kInspect:
      return OnInspect(GenerationOf(message), message.inspect().briefly());
    case v1::ServerMessage::kAskStacks:
      if (GenerationOf(message) == generation.id() && generation.HasProcesses()) {
        return out.Add(CollectStacks{generation.id().number, message.ask_stacks()});
      }
      return out.Up(MessageOf(NobodyOf(GenerationOf(message), message.ask_stacks().call())),
                    generation.Named());
    case v1::ServerMessage::kAgent:  // of a cluster's agent, which is another program
    case v1::ServerMessage::BODY_NOT_SET:
      // A newer server's message: what an older agent cannot do it leaves.
      return;
  }
}

void AgentCore::Impl::OnWelcome(const v1::Welcome& welcome) {
  const absl::Status versions =
      rpc::CheckVersions("this node", rpc::ThisVersion(), "the server", rpc::VersionIn(welcome));
  if (!versions.ok() && !departure.exit) {
    return LeaveRefused(
        Exit{ExitStatusOfRejection(versions.code()), std::string(versions.message()), {}, {}});
  }
  if (!session.away_reason().empty() && !departure.exit) {
    out.Add(Say{absl::StrCat("reached ", session.Server())});
  }
  // What nodes may differ in is as this one brought it.
  const v1::JobSpec& spec = config.join.has_spec() ? config.join.spec() : welcome.spec();
  if (!session.ever_welcomed()) out.Add(BeginJob{spec});
  const bool forgot_us = session.Welcomed(now, welcome);
  if (FenceAt() != MonoTime::Never()) {
    out.Add(HoldWorkersUntil{generation.id().number, FenceAt()});
  }
  if (forgot_us) {
    // What runs here belongs to nobody. Where the Join named it the server waits for its end, and
    // orders that.
    orders.newest = orders.current = 0;
    orders.stop.reset();
    orders.next.reset();
    FailStoreCalls(absl::AbortedError("the server lost its state; the generation is over"));
    if (generation.HasProcesses()) {
      out.Add(Say{"the server lost its state: stopping the workers and joining afresh"});
      if (!generation.StopsAll()) Stop(session.StopGrace());
    }
  }
  SpeakAgain();
}

void AgentCore::Impl::SpeakAgain() {
  generation.SpeakAgain(session.Owns(generation.id()));
  if (hangs.hang() && generation.running()) {
    v1::NodeMessage message;
    *message.mutable_evidence() = *hangs.hang();
    out.Up(std::move(message), generation.id());
  }
  if (orders.stop && !generation.Alive()) SendStopped(*orders.stop);
  for (v1::StoreRequest& request : store_calls.All()) {
    v1::NodeMessage message;
    *message.mutable_store() = std::move(request);
    out.Up(std::move(message), generation.id());
  }
  if (departure.cancel_signal != 0) SendCancel();
}

void AgentCore::Impl::SendStopped(const GenerationId& stopped) {
  v1::NodeMessage message;
  message.mutable_node_stopped()->set_held_port(generation.Alive() ? 0 : held_port);
  out.Up(std::move(message), stopped);
}

void AgentCore::Impl::OnStatus(const v1::JobStatus& status) {
  out.Add(ShowStatus{status});
  orders.restarts = status.restarts();
  // A job that gathers for the first time goes on from the number of one of its name before it.
  const bool exists = status.phase() == v1::RUNNING || status.phase() == v1::STOPPING;
  orders.current = exists ? status.generation() : status.ended_generation();
  const bool of_those_here = generation.running() && session.Owns(generation.id()) &&
                             status.generation() == generation.id().number;
  if (!status.checkpoint_wanted() || !of_those_here || orders.checkpoint_asked) return;
  orders.checkpoint_asked = true;
  out.Add(AskForCheckpoint{generation.id().number, session.spec().elastic().checkpoint_signal()});
}

void AgentCore::Impl::OnRejected(const v1::Rejected& rejected) {
  if (departure.exit) return;
  const auto code = static_cast<absl::StatusCode>(rejected.code());
  Exit exit{ExitStatusOfRejection(code),
            absl::StrCat(session.Server(),
                         " refuses this node: ", OneLine(rejected.message(), kMaxErrorText)),
            {},
            {}};
  // The job is over, or none of this node's: so are its workers.
  if (code == absl::StatusCode::kFailedPrecondition) {
    return Leave(std::move(exit), session.StopGrace());
  }
  LeaveRefused(std::move(exit));
}

void AgentCore::Impl::OnAssign(const GenerationId& assigned, const v1::Assign& assign) {
  if (departure.exit) return;
  if (assigned.number <= orders.newest) return;  // a repeat, or older than what we know
  if (!generation.Alive()) return Start(assigned, assign);
  // The order to stop was lost with a connection.
  orders.next = {assigned, assign};
  if (!generation.running()) return;
  FailStoreCalls(absl::AbortedError(absl::StrCat(
      "generation ", generation.id().number, " is over; the current one is ", assigned.number)));
  v1::Stop stop;
  stop.set_rejoin(session.spec().restart().in_place());
  Stop(session.StopGrace(), WorkersToKeep(generation.workers(), stop),
       "the generation was replaced");
}

void AgentCore::Impl::Start(const GenerationId& assigned, const v1::Assign& assign) {
  orders.newest = assigned.number;
  orders.stop.reset();
  orders.checkpoint_asked = false;
  hangs = {};
  progress.news = false;
  generation.Start(now, assigned, assign, session.welcomed());
  const std::string differ = OneLine(assign.versions_differ(), kMaxErrorText);
  if (differ != orders.versions_differ && !differ.empty()) out.Add(Say{differ});
  orders.versions_differ = differ;
  if (FenceAt() != MonoTime::Never()) {
    out.Add(HoldWorkersUntil{assigned.number, FenceAt()});
  }
}

void AgentCore::Impl::OnStop(const GenerationId& stopped, const v1::Stop& stop) {
  if (departure.exit) return;
  const absl::Duration grace = FromProto(stop.grace());
  if (departure.cancel_signal != 0) departure.cancel_by = now + grace + kOtherNodesMargin;
  const bool of_this_server = stopped.server_id == session.server_id();
  if (of_this_server && orders.next && orders.next->first.number <= stopped.number) {
    orders.next.reset();
  }
  // It never started here, and its Assign must not start it any more.
  const bool is_next = of_this_server && stopped.number > orders.newest;
  if (is_next) orders.newest = stopped.number;
  const bool runs_here = stopped == generation.id();
  if (!generation.Alive() || (!runs_here && !(is_next && session.Owns(generation.id())))) {
    if (!generation.Alive() && (is_next || runs_here)) orders.stop = stopped;
    return SendStopped(stopped);
  }
  orders.stop = stopped;
  const std::string reason = OneLine(stop.reason(), kMaxErrorText);
  // What is being stopped anyway may be all there was of the generation, or of the job.
  if (stop.fenced() && of_this_server && generation.running()) {
    out.Add(Say{absl::StrCat("fenced: ", reason, "; its workers here are stopped")});
  }
  FailStoreCalls(absl::AbortedError(
      absl::StrCat("generation ", generation.id().number, " is being stopped: ", reason)));
  if (generation.running()) {
    Stop(grace, WorkersToKeep(generation.workers(), stop), reason);
  } else if (grace < session.StopGrace()) {
    Stop(grace, {}, reason);
  }
}

void AgentCore::Impl::OnFinished(const v1::Finished& finished) {
  if (departure.exit) return;
  // After success nothing is left but what the workers themselves left behind.
  const bool succeeded = finished.verdict().outcome() == v1::SUCCEEDED;
  const absl::Duration grace = succeeded ? absl::ZeroDuration() : session.StopGrace();
  Leave(Exit{finished.verdict().exit_status(), "", finished.verdict(), finished.timeline()}, grace);
}

}  // namespace cadre::agent
