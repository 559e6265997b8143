#include "agent/core/agent_core.h"

#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "agent/core/command_buffer.h"
#include "agent/core/hang_watch.h"
#include "agent/core/node_generation.h"
#include "agent/core/server_session.h"
#include "agent/core/worker_state.h"
#include "base/check.h"
#include "base/duration.h"
#include "base/exit_codes.h"
#include "base/text.h"
#include "rpc/store_reply.h"
#include "rpc/versions.h"
#include "rpc/worker_end.h"

namespace cadre::agent {
namespace {

// Longer texts of a server or a worker are cut to this length before they are passed on.
constexpr size_t kMaxErrorText = 1024;
// How long beyond the grace the server may wait for other nodes after it has acted on a Cancel.
constexpr absl::Duration kOtherNodesMargin = absl::Seconds(12);
// Progress of the node's workers is sent at most once per interval.
constexpr absl::Duration kProgressInterval = absl::Seconds(1);
// How long workers may outlive SIGKILL before the agent exits without them.
constexpr absl::Duration kKillMargin = absl::Seconds(2);
// How long the server may take, beyond the stop grace, to act on a Cancel.
constexpr absl::Duration kCancelMargin = absl::Seconds(2);
// How long the launcher of a submitted job whose workers have all exited waits for the server to
// learn how they did.
constexpr absl::Duration kResultKept = absl::Hours(24);
// Linux has no higher signal.
constexpr int kHighestSignal = 64;

// The reply to a request for the stacks of a generation that does not run here.
v1::NodeStacks NoWorkersOf(const GenerationId& asked, uint64_t call) {
  v1::NodeStacks stacks;
  stacks.set_call(call);
  stacks.set_why(absl::StrCat("no worker of generation ", asked.number, " runs there now"));
  return stacks;
}

v1::NodeMessage MessageOf(const v1::NodeStacks& stacks) {
  v1::NodeMessage message;
  *message.mutable_stacks() = stacks;
  return message;
}

}  // namespace

// Dispatches each message and event to the object that it concerns, and acts on the result. This
// file has the decisions that involve several of these objects.
//
//   message of the server   handler            changes (the object's source)
//   Welcome                 OnWelcome          session (server_session.cc)
//   Rejected                OnRejected         departure
//   Assign                  OnAssign, Start    generation (node_generation.cc)
//   Stop                    OnStop             generation
//   Status                  OnStatus           orders
//   Finished                OnFinished         departure
//   Renewed                 OnServerMessage    session's fence (server_session.cc)
//   Store                   OnServerMessage    store_calls (server_session.cc)
//   Inspect                 OnInspect          hangs (hang_watch.cc)
//   AskStacks               OnServerMessage    nothing: the daemon collects the stacks
//   SignalWorkers           OnSignalWorkers    nothing: the daemon sends the signal
//
//   event on this node      handler            changes
//   LinkUp, LinkDown        OnLinkDown         session, departure
//   WorkerRuns and other    Dispatch, or the   generation and its workers (worker_state.cc)
//   Worker... events        handlers below
//   AllGone, WorkerWaits    ContinueIfStopped  generation, which may start the next one
//   SupervisorLost          OnSupervisorLost   departure
//   EvidenceFound, -Done    OnEvidence...      hangs
//   SignalReceived          OnSignal           departure
//   StoreRequested          OnStoreRequested   store_calls
//   a deadline is over      OnDeadlines        all of them
struct AgentCore::Impl {
  // The server's orders that do not concern the running generation.
  struct Orders {
    // The job has a generation that does not include this node. (The server sends a member its
    // Assign before the status that names the generation.)
    bool InReserve() const { return current > newest && !next; }

    // The newest generation number of this server that was started here or must no longer be
    // started.
    uint64_t newest = 0;
    // The job's generation as last reported by the server; the last one while the job forms again.
    uint64_t current = 0;
    // The server waits for NodeStopped of this generation.
    std::optional<GenerationId> stop;
    // The next assignment, which waits until no process of the generation before runs.
    std::optional<std::pair<GenerationId, v1::Assign>> next;
    bool checkpoint_asked = false;  // of the running workers
    bool end_noted = false;         // in the output of the batch job's script that runs or ran
    uint32_t restarts = 0;          // as last reported by the server
    std::string versions_differ;    // as last shown to the user
  };
  // How the agent ends.
  struct Departure {
    int cancel_signal = 0;  // of the Cancel that the server has not yet answered with Finished
    MonoTime cancel_by = MonoTime::Never();
    bool at_once = false;      // a second signal has come
    std::optional<Exit> exit;  // set: the agent exits with it once no worker is left
    MonoTime leave_by = MonoTime::Never();
    bool done = false;  // Exit was emitted
  };
  struct ProgressReport {
    bool changed = false;
    MonoTime due;  // not sent again before this time
  };

  explicit Impl(AgentConfig c);

  // --- events and deadlines; deadlines include those by which a hang is noticed ---
  void Dispatch(const AgentEvent& event);
  void OnLinkDown(const absl::Status& status);
  // Tells the user why the server is away and what will follow, unless the reason is unchanged.
  void ReportDisconnected(const std::string& reason);
  void OnDeadlines();
  MonoTime NextDeadline() const;
  // When the workers are killed if the server does not answer; Never() if they are not fenced.
  MonoTime FenceAt() const;
  void FenceIfDue();
  // How long the server may be away before the agent gives up.
  absl::Duration AwayTimeout() const;
  // Waits for a probe that is under way, unless the grace is zero.
  void Stop(absl::Duration grace, std::set<uint32_t> keep = {}, const std::string& reason = "");
  void FailStoreCalls(const absl::Status& status);
  // Whether the server is told of events of the generation's workers.
  bool ShouldReport() const { return session.welcomed() && session.Owns(generation.id()); }

  // --- messages of the server ---
  void OnServerMessage(const v1::ServerMessage& message);
  void OnWelcome(const v1::Welcome& welcome);
  void OnRejected(const v1::Rejected& rejected);
  void OnAssign(const GenerationId& assigned, const v1::Assign& assign);
  void OnStop(const GenerationId& stopped, const v1::Stop& stop);
  void OnStatus(const v1::JobStatus& status);
  void OnFinished(const v1::Finished& finished);
  void OnSignalWorkers(const GenerationId& signalled, int signal);
  // If the generation is a batch job's script: has the reason for its end written to its output,
  // once. Other causes than those of NoteEndOfScript are the script's own.
  void NoteEnd(v1::FailureCause cause, absl::string_view reason);
  void Start(const GenerationId& assigned, const v1::Assign& assign);
  // Sends the server again what it may have missed.
  void Resync();
  void SendStopped(const GenerationId& stopped);

  // --- events on this node ---
  void OnWorkerDied(const WorkerDied& event);
  void OnUnkillable(const WorkerUnkillable& event);
  void OnSupervisorLost(const SupervisorLost& event);
  void OnStoreRequested(const v1::StoreRequest& request);
  // Proceeds to the next step once no process of the generation runs any more.
  void ContinueIfStopped();
  void SendProgress();

  // --- hang diagnosis ---
  void OnInspect(const GenerationId& inspected, bool briefly);
  void StartProbe(bool briefly);
  // Probes if a worker hangs or is at a standstill.
  void ProbeIfDue();
  void ReportFindings();
  void OnEvidenceFound(const EvidenceFound& event);
  void OnEvidenceDone(uint64_t number);

  // --- the ways in which the agent ends ---
  void OnSignal(int signal);
  void SendCancel();
  void SendLeave(v1::FailureCause cause, const std::string& reason);
  // Exits with `exit` once no worker is left, shortly after `grace` at the latest.
  void Leave(Exit exit, absl::Duration grace);
  // Leaves because the server does not accept this agent. If the agent was to adopt the workers of
  // another one, it leaves them running.
  void LeaveRefused(Exit exit);
  void LeaveIfDue();
  // Leaves because the server has ended for good and will never report how the job ended.
  void LeaveWithoutVerdict();
  void Finish();

  const AgentConfig config;
  MonoTime now;
  CommandBuffer out;
  ServerSession session;
  NodeGeneration generation;
  Orders orders;
  HangWatch hangs;
  ProgressReport progress;
  PendingStoreCalls store_calls;
  uint32_t held_port;
  Departure departure;
};

AgentCore::Impl::Impl(AgentConfig c)
    : config(std::move(c)),
      out(config.job, config.incarnation),
      session(config, out),
      generation(out),
      held_port(config.join.held_port()) {
  if (!config.adopted) return;
  generation.Adopt(config.adopted->generation, config.adopted->first_rank, config.adopted->workers);
  orders.newest = config.adopted->generation.number;
  // The full grace: the supervisor still counts the one that began before.
  if (config.adopted->stopping) Stop(session.StopGrace());
}

void AgentCore::Impl::Dispatch(const AgentEvent& event) {
  std::visit(
      [this](const auto& e) {
        using T = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<T, LinkUp>) {
          session.OnConnected(now, generation.RunningId(), held_port);
        }
        if constexpr (std::is_same_v<T, LinkDown>) OnLinkDown(e.status);
        if constexpr (std::is_same_v<T, ServerMessageReceived>) OnServerMessage(e.message);
        if constexpr (std::is_same_v<T, WorkerRuns>) generation.OnRuns(e, now, ShouldReport());
        if constexpr (std::is_same_v<T, ProgramImported>) {
          generation.OnImported(e, now, ShouldReport());
        }
        if constexpr (std::is_same_v<T, WorkerDied>) OnWorkerDied(e);
        if constexpr (std::is_same_v<T, WorkerUnkillable>) OnUnkillable(e);
        if constexpr (std::is_same_v<T, AllGone>) {
          if (!generation.OnAllGone(e)) return;
          held_port = e.held_port;
          ContinueIfStopped();
        }
        if constexpr (std::is_same_v<T, WorkerMayRejoin>) generation.OnMayRejoin(e);
        if constexpr (std::is_same_v<T, WorkerWaits>) {
          if (generation.OnWaits(e, now)) ContinueIfStopped();
        }
        if constexpr (std::is_same_v<T, SupervisorLost>) OnSupervisorLost(e);
        if constexpr (std::is_same_v<T, WorkerProgress>) {
          if (generation.OnProgress(e)) progress.changed = true;
        }
        if constexpr (std::is_same_v<T, WorkerAlive>) generation.OnAlive(e);
        if constexpr (std::is_same_v<T, WorkerWrote>) generation.OnWrote(e);
        if constexpr (std::is_same_v<T, EvidenceFound>) OnEvidenceFound(e);
        if constexpr (std::is_same_v<T, EvidenceDone>) OnEvidenceDone(e.generation);
        if constexpr (std::is_same_v<T, StacksFound>) {
          out.Send(MessageOf(e.stacks), generation.RunningId());
        }
        if constexpr (std::is_same_v<T, SignalReceived>) OnSignal(e.signal);
        if constexpr (std::is_same_v<T, StoreRequested>) OnStoreRequested(e.request);
        if constexpr (std::is_same_v<T, UsageMeasured>) session.SetUsage(e.usage);
      },
      event);
}

void AgentCore::Impl::OnLinkDown(const absl::Status& status) {
  session.OnDisconnected(now, absl::IsNotFound(status));
  // A server that still counts on this node repeats the Assign; by then it may be for another
  // generation.
  orders.next.reset();
  if (departure.exit) return;
  const std::string reason = OneLine(status.message(), kMaxErrorText);
  if (absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status)) {
    return LeaveRefused(
        Exit{kExitUnavailable,
             absl::StrCat(session.ServerName(), " refuses this token (", reason, ")",
                          absl::IsPermissionDenied(status)
                              ? ""
                              : "; every node of a job needs the same one (--token-file)"),
             {},
             {}});
  }
  if (status.code() == absl::StatusCode::kInvalidArgument) {
    return LeaveRefused(Exit{kExitInternal,
                             absl::StrCat(session.ServerName(), " does not understand this agent (",
                                          reason, "); run the same version of cadre on every node"),
                             {},
                             {}});
  }
  if (departure.cancel_signal != 0) {
    return Leave(Exit{StatusOfCancel(departure.cancel_signal), "", {}, {}}, session.StopGrace());
  }
  // While workers run, the end of the connection and the refused connections after it are one event
  // for the user, so a refusal is not a new reason. Any other reason for which there is no
  // connection is reported, for instance that certificates have expired.
  if (generation.Alive() && !session.away_reason().empty() &&
      (absl::IsNotFound(status) || absl::StrContains(reason, "connection refused"))) {
    session.IsNewReason(reason);
    return;
  }
  ReportDisconnected(reason);
}

void AgentCore::Impl::ReportDisconnected(const std::string& reason) {
  if (!session.IsNewReason(reason)) return;
  const bool strict = FenceAt() != MonoTime::Never();
  const MonoTime end = strict ? FenceAt() : *session.away_since() + AwayTimeout();
  const char* const prospect = strict ? "workers are killed in "
                               : generation.Alive() && !generation.fenced()
                                   ? "the workers keep running, and are stopped in "
                                   : "gives up in ";
  out.Add(Say{absl::StrCat(generation.Alive() ? "lost " : "waiting for ", session.ServerName(),
                           ": ", reason, " (", prospect,
                           absl::FormatDuration(absl::Ceil(end - now, absl::Seconds(1))), ")")});
}

MonoTime AgentCore::Impl::FenceAt() const {
  if (generation.fenced() || !generation.HasProcesses()) return MonoTime::Never();
  return session.fence().at();
}

void AgentCore::Impl::FenceIfDue() {
  if (now < FenceAt()) return;
  generation.SetFenced();
  out.Add(Say{absl::StrCat("no answer from ", session.ServerName(), " for ",
                           absl::FormatDuration(session.fence().timeout()),
                           ": the workers are killed (--strict-fencing)")});
  FailStoreCalls(
      absl::AbortedError(absl::StrCat("generation ", generation.id().number, " is fenced")));
  Stop(absl::ZeroDuration());
}

absl::Duration AgentCore::Impl::AwayTimeout() const {
  // If all workers have exited, the node waits for the verdict, not for other nodes. Of a submitted
  // job nothing but this launcher knows how they ended, and a server that never learns it runs them
  // again.
  const auto& workers = generation.workers();
  const bool all_exited =
      !workers.empty() && std::all_of(workers.begin(), workers.end(),
                                      [](const auto& worker) { return worker.second.exited(); });
  const bool keeps_result =
      config.join.part() != 0 && all_exited && session.Owns(generation.id()) && !orders.stop;
  if (keeps_result) return std::max(config.orphan_timeout, kResultKept);
  const bool has_worked = generation.Alive() || (session.Owns(generation.id()) && !orders.stop);
  return has_worked ? config.orphan_timeout : config.connect_timeout;
}

void AgentCore::Impl::Stop(absl::Duration grace, std::set<uint32_t> keep,
                           const std::string& reason) {
  generation.Stop(now, grace, std::move(keep), reason, hangs.delays_stop());
}

void AgentCore::Impl::FailStoreCalls(const absl::Status& status) {
  for (v1::StoreReply& reply : store_calls.FailAll(status)) {
    out.Add(StoreAnswer{std::move(reply)});
  }
}

void AgentCore::Impl::OnDeadlines() {
  if (departure.done) return;
  if (hangs.FindingsAreDue(now)) ReportFindings();
  if (hangs.over_by() <= now) OnEvidenceDone(generation.id().number);
  if (generation.running() && session.welcomed()) {
    SendProgress();
    ProbeIfDue();
  }
  if (session.welcome_late_at() <= now) {
    session.LateWelcomeReported();
    if (!departure.exit) {
      ReportDisconnected(absl::StrCat("it accepted the connection and has not answered for ",
                                      absl::FormatDuration(kWelcomeIsLate), "; see its log"));
    }
  }
  generation.OnDeadlines(now, session.welcomed(), session.StopGrace());
  LeaveIfDue();
  if (!departure.done && !departure.exit) session.RenewIfDue(now, generation.RunningId());
}

MonoTime AgentCore::Impl::NextDeadline() const {
  if (departure.done) return MonoTime::Never();
  MonoTime next = std::min(hangs.Deadline(), generation.Deadline(session.welcomed()));
  if (generation.running() && session.welcomed()) {
    if (progress.changed) next = std::min(next, progress.due);
    if (hangs.idle()) {
      next = std::min({next, FirstHang(generation.workers(), session.spec().timeouts()),
                       hangs.NextProbe(FirstStandstill(generation.workers()))});
    }
  }
  if (departure.exit) return std::min(next, departure.leave_by);
  next = std::min(
      {next, departure.cancel_by, session.renew_at(), session.welcome_late_at(), FenceAt()});
  if (session.away_since()) next = std::min(next, *session.away_since() + AwayTimeout());
  return next;
}

AgentCore::AgentCore(AgentConfig config) : impl_(std::make_unique<Impl>(std::move(config))) {}
AgentCore::~AgentCore() = default;

std::vector<AgentCommand> AgentCore::Step(MonoTime now, const AgentEvent& event) {
  Impl& core = *impl_;
  if (core.departure.done) return {};
  core.now = now;
  core.session.NoteIfAway(now);
  if (const auto* slept = std::get_if<MachineSlept>(&event)) {
    core.session.fence().OnSleep(slept->duration);
  }
  // The fence comes first, because the event may be the exit of a worker that the supervisor has
  // fenced.
  core.FenceIfDue();
  core.Dispatch(event);
  core.OnDeadlines();
  return core.out.Take();
}

MonoTime AgentCore::NextDeadline() const { return impl_->NextDeadline(); }

// --- messages of the server ---

void AgentCore::Impl::OnServerMessage(const v1::ServerMessage& message) {
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
      // A reply without a pending request belongs to a generation that was stopped.
      if (store_calls.OnReply(message.store())) out.Add(StoreAnswer{message.store()});
      return;
    case v1::ServerMessage::kRenewed:
      if (session.fence().OnAnswer(message.renewed().number()) && FenceAt() != MonoTime::Never()) {
        out.Add(HoldWorkersUntil{generation.id().number, FenceAt()});
      }
      return;
    case v1::ServerMessage::kInspect:
      return OnInspect(GenerationOf(message), message.inspect().briefly());
    case v1::ServerMessage::kAskStacks:
      if (GenerationOf(message) == generation.id() && generation.HasProcesses()) {
        return out.Add(CollectStacks{generation.id().number, message.ask_stacks()});
      }
      return out.Send(MessageOf(NoWorkersOf(GenerationOf(message), message.ask_stacks().call())),
                      generation.RunningId());
    case v1::ServerMessage::kSignal:
      return OnSignalWorkers(GenerationOf(message), message.signal().signal());
    case v1::ServerMessage::kAgent:  // for a cluster agent, which is another program
    case v1::ServerMessage::BODY_NOT_SET:
      // A newer server's message, which this agent ignores.
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
    out.Add(Say{absl::StrCat("reached ", session.ServerName())});
  }
  // The fields in which nodes may differ are taken from this node's own spec.
  const v1::JobSpec& spec = config.join.has_spec() ? config.join.spec() : welcome.spec();
  if (!session.ever_welcomed()) out.Add(BeginJob{spec});
  const bool server_lost_state = session.OnWelcome(now, welcome);
  if (FenceAt() != MonoTime::Never()) {
    out.Add(HoldWorkersUntil{generation.id().number, FenceAt()});
  }
  if (server_lost_state) {
    // The server does not know the workers that run here. If the Join named their generation, the
    // server waits until they are gone and orders the stop.
    orders.newest = orders.current = 0;
    orders.stop.reset();
    orders.next.reset();
    FailStoreCalls(absl::AbortedError("the server lost its state; the generation is over"));
    if (generation.HasProcesses()) {
      out.Add(Say{"the server lost its state: this node stops its workers and joins again"});
      if (!generation.StopsAll()) Stop(session.StopGrace());
    }
  }
  Resync();
}

void AgentCore::Impl::Resync() {
  generation.Resync(session.Owns(generation.id()));
  if (hangs.hang() && generation.running()) {
    v1::NodeMessage message;
    *message.mutable_evidence() = *hangs.hang();
    out.Send(std::move(message), generation.id());
  }
  if (orders.stop && !generation.Alive()) SendStopped(*orders.stop);
  for (v1::StoreRequest& request : store_calls.All()) {
    v1::NodeMessage message;
    *message.mutable_store() = std::move(request);
    out.Send(std::move(message), generation.id());
  }
  if (departure.cancel_signal != 0) SendCancel();
}

void AgentCore::Impl::SendStopped(const GenerationId& stopped) {
  v1::NodeMessage message;
  message.mutable_node_stopped()->set_held_port(generation.Alive() ? 0 : held_port);
  out.Send(std::move(message), stopped);
}

void AgentCore::Impl::OnStatus(const v1::JobStatus& status) {
  out.Add(ShowStatus{status});
  orders.restarts = status.restarts();
  // A job that forms for the first time continues the numbering of an earlier job of its name.
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
            absl::StrCat(session.ServerName(),
                         " refuses this node: ", OneLine(rejected.message(), kMaxErrorText)),
            {},
            {}};
  // The job, or this node's part in it, is over, and so are its workers.
  if (code == absl::StatusCode::kFailedPrecondition) {
    return Leave(std::move(exit), session.StopGrace());
  }
  LeaveRefused(std::move(exit));
}

void AgentCore::Impl::OnAssign(const GenerationId& assigned, const v1::Assign& assign) {
  if (departure.exit) return;
  if (assigned.number <= orders.newest) return;  // a repeat, or outdated
  if (!generation.Alive()) return Start(assigned, assign);
  // The stop order for the running generation was lost with a connection.
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
  CADRE_CHECK(!departure.exit, "an agent that leaves starts no workers");
  CADRE_CHECK(assigned.number > orders.newest, "generation ", assigned.number, " is older than ",
              orders.newest);
  orders.newest = assigned.number;
  orders.stop.reset();
  orders.checkpoint_asked = orders.end_noted = false;
  hangs = {};
  progress.changed = false;
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
  // The generation never started here, and a late Assign must not start it.
  const bool is_next = of_this_server && stopped.number > orders.newest;
  if (is_next) orders.newest = stopped.number;
  const bool runs_here = stopped == generation.id();
  if (!generation.Alive() || (!runs_here && !(is_next && session.Owns(generation.id())))) {
    if (!generation.Alive() && (is_next || runs_here)) orders.stop = stopped;
    return SendStopped(stopped);
  }
  orders.stop = stopped;
  const std::string reason = OneLine(stop.reason(), kMaxErrorText);
  // Workers that are already being stopped may be all that was left of the job, so nothing is
  // reported then.
  if (stop.fenced() && of_this_server && generation.running()) {
    out.Add(Say{absl::StrCat("fenced: ", reason, "; its workers here are stopped")});
  }
  FailStoreCalls(absl::AbortedError(
      absl::StrCat("generation ", generation.id().number, " is being stopped: ", reason)));
  if (runs_here) NoteEnd(stop.cause(), reason);
  if (generation.running()) {
    Stop(grace, WorkersToKeep(generation.workers(), stop), reason);
  } else if (grace < session.StopGrace()) {
    Stop(grace, {}, reason);
  }
}

void AgentCore::Impl::OnFinished(const v1::Finished& finished) {
  if (departure.exit) return;
  // Only processes that the workers left behind can remain after a success.
  const bool succeeded = finished.verdict().outcome() == v1::SUCCEEDED;
  const absl::Duration grace = succeeded ? absl::ZeroDuration() : session.StopGrace();
  // Its Stop may have been lost, or come from an older server, which gives no cause there.
  const v1::Failure& cause = finished.verdict().root_cause();
  if (!succeeded) NoteEnd(cause.cause(), OneLine(cause.message(), kMaxErrorText));
  Leave(Exit{finished.verdict().exit_status(), "", finished.verdict(), finished.timeline()}, grace);
}

void AgentCore::Impl::OnSignalWorkers(const GenerationId& signalled, int signal) {
  if (!generation.running() || signalled != generation.id() || departure.exit) return;
  // SIGKILL would look like a failure of the workers: the server ends them with Stop.
  if (signal < 1 || signal > kHighestSignal || signal == SIGKILL) return;
  std::set<uint32_t> running;
  for (const auto& [local_rank, worker] : generation.workers()) {
    if (worker.pid != 0 && !worker.exited()) running.insert(local_rank);
  }
  if (!running.empty()) out.Add(SignalWorkers{generation.id().number, signal, std::move(running)});
}

void AgentCore::Impl::NoteEnd(v1::FailureCause cause, absl::string_view reason) {
  if (cause != v1::CANCELLED && cause != v1::TOTAL_TIMEOUT && cause != v1::PREEMPTED &&
      cause != v1::REQUEUED) {
    return;
  }
  const Workers& workers = generation.workers();
  const bool began = std::any_of(workers.begin(), workers.end(),
                                 [](const auto& worker) { return worker.second.pid != 0; });
  if (!session.spec().has_batch() || !began || orders.end_noted) return;
  orders.end_noted = true;
  NoteEndOfScript note{generation.id().number, cause};
  // The other causes say it all, and so does "cancelled", the reason of a Stop without another one.
  if (cause == v1::CANCELLED && reason != "cancelled") {
    note.reason = std::string(absl::StripPrefix(reason, "cancelled: "));
  }
  out.Add(std::move(note));
}

// --- events on this node ---

void AgentCore::Impl::OnWorkerDied(const WorkerDied& event) {
  const bool failed_before = generation.failure().has_value();
  const std::string fenced_because =
      absl::StrCat("the server had not answered for ",
                   absl::FormatDuration(session.fence().timeout()), " (--strict-fencing)");
  if (!generation.OnDied(event, now, config.join.node(), fenced_because)) return;
  if (generation.failure() && !failed_before && !session.welcomed() && !session.lost_for_good()) {
    out.Add(Say{absl::StrCat(generation.failure()->message(),
                             "; the server is told when it can be reached again")});
  }
  // If another server announced the generation, this server is only told when it has ended.
  if (!ShouldReport()) return;
  // The last progress is sent at once, before the exit.
  progress.due = MonoTime();
  SendProgress();
  out.Send(ExitedMessage(generation.workers().at(event.local_rank)), generation.id());
}

void AgentCore::Impl::OnUnkillable(const WorkerUnkillable& event) {
  const uint32_t local_rank = event.remains.local_rank();
  if (!generation.OnUnkillable(event, now)) return;
  out.Add(Say{absl::StrCat(generation.NameOf(local_rank), " ", rpc::UnkillableText(event.remains),
                           "; until then this launcher starts no workers")});
  if (!session.welcomed()) return;
  out.Send(UnkillableMessage(generation.workers().at(local_rank)), generation.id());
}

void AgentCore::Impl::ContinueIfStopped() {
  if (!generation.EndIfStopped()) return;
  if (HasUnkillableProcesses(generation.workers()) && !departure.exit) {
    out.Add(
        Say{"the processes that SIGKILL had not ended are gone: this node can take part in the job "
            "again"});
  }
  if (departure.exit) return Finish();
  if (orders.stop && session.welcomed()) SendStopped(*orders.stop);
  if (!orders.next) return;
  const auto [assigned, assign] = *std::exchange(orders.next, std::nullopt);
  Start(assigned, assign);
}

void AgentCore::Impl::SendProgress() {
  if (!session.welcomed() || !generation.running() || !progress.changed || now < progress.due)
    return;
  v1::NodeMessage message;
  *message.mutable_progress() = SumOfProgress(generation.workers());
  out.Send(std::move(message), generation.id());
  progress = {false, now + kProgressInterval};
}

void AgentCore::Impl::OnSupervisorLost(const SupervisorLost& event) {
  SendLeave(v1::NODE_LOST, event.why);
  const bool had_workers = generation.Alive();
  generation.OnSupervisorLost();
  if (!departure.exit) {
    departure.exit =
        Exit{kExitInternal,
             absl::StrCat(event.why, had_workers ? "; the workers of this node were killed" : ""),
             {},
             {}};
  }
  Finish();
}

void AgentCore::Impl::OnStoreRequested(const v1::StoreRequest& request) {
  const auto refuse = [&](const absl::Status& status) {
    out.Add(StoreAnswer{rpc::StoreErrorReply(request, status)});
  };
  const uint64_t number = generation.id().number;
  if (!generation.running() || departure.exit || request.generation() != number ||
      request.job() != config.job) {
    return refuse(absl::AbortedError(absl::StrCat(
        "generation ", request.generation(), " of job ", OneLine(request.job(), kMaxErrorText),
        " does not run on this node; the current one is ", number, " of ", config.job)));
  }
  const absl::StatusOr<bool> added = store_calls.Add(request);
  if (!added.ok()) return refuse(added.status());
  // It is pending already, or is sent after the next Welcome.
  if (!*added || !session.welcomed()) return;
  v1::NodeMessage message;
  *message.mutable_store() = request;
  out.Send(std::move(message), generation.id());
}

// --- hang diagnosis: workers are probed because one of them, here or on another node, makes no
// progress ---

void AgentCore::Impl::OnInspect(const GenerationId& inspected, bool briefly) {
  if (!generation.running() || inspected != generation.id() || departure.exit) return;
  // The evidence of a hang here has been sent already.
  if (hangs.hang()) return;
  hangs.Inspect();
  if (!hangs.probing()) StartProbe(briefly);
}

void AgentCore::Impl::StartProbe(bool briefly) {
  hangs.Begin(now, briefly);
  out.Add(CollectEvidence{generation.id().number,
                          Overdue(generation.workers(), session.spec().timeouts(), now), briefly});
}

void AgentCore::Impl::ProbeIfDue() {
  if (!hangs.idle()) return;
  const Workers& workers = generation.workers();
  if (FirstHang(workers, session.spec().timeouts()) <= now) return StartProbe(/*briefly=*/false);
  const MonoTime standstill = FirstStandstill(workers);
  if (hangs.NextProbe(standstill) > now) return;
  hangs.OnStandstillProbe(standstill, now);
  StartProbe(/*briefly=*/true);
}

void AgentCore::Impl::OnEvidenceFound(const EvidenceFound& event) {
  if (event.generation == generation.id().number && hangs.OnFindings(event.ranks, now))
    ReportFindings();
}

void AgentCore::Impl::ReportFindings() {
  std::vector<v1::RankEvidence> findings = hangs.TakeFindings();
  if (!generation.running()) return;
  v1::NodeEvidence evidence =
      EvidenceOf(std::move(findings), generation.workers(), session.spec(), now);
  const bool stands_still = FirstStandstill(generation.workers()) <= now;
  if (!hangs.ShouldReport(stands_still, &evidence) || !session.welcomed()) return;
  v1::NodeMessage message;
  *message.mutable_evidence() = std::move(evidence);
  out.Send(std::move(message), generation.id());
}

void AgentCore::Impl::OnEvidenceDone(uint64_t number) {
  if (number == generation.id().number && hangs.End()) generation.OnProbeEnded(now);
}

// --- the ways in which the agent ends: a verdict, a signal, or a server that is away for too long
// or refuses it ---

void AgentCore::Impl::OnSignal(int signal) {
  // A scheduler's warning does not shorten an end that is under way.
  if (signal == kWarningSignal && (departure.exit || departure.cancel_signal != 0)) return;
  if (departure.exit) {
    // The second signal: remaining processes are killed now.
    departure.leave_by = now + kKillMargin;
    return Stop(absl::ZeroDuration());
  }
  const std::string reason = absl::StrCat(SignalName(signal), " at node ", config.join.node());
  if (departure.cancel_signal != 0 && !departure.at_once && session.connected()) {
    // All nodes get the verdict before a server in this process ends with it.
    out.Add(Say{"killing the workers of all nodes (another signal ends this launcher at once)"});
    departure.at_once = true;
    SendCancel();
    departure.cancel_by = now + kCancelMargin;
    if (generation.HasProcesses()) Stop(absl::ZeroDuration());
    return;
  }
  if (departure.cancel_signal != 0) {
    SendLeave(v1::CANCELLED, absl::StrCat("another ", reason));
    return Leave(Exit{kExitSignalBase + signal, "", {}, {}}, absl::ZeroDuration());
  }
  // The scheduler reclaims this node. An elastic job may go on without it, a cluster job gets
  // another node, and a job that does not use this node (a reserve) loses nothing.
  const v1::NodeRange& nodes = session.spec().nodes();
  const bool replaceable =
      nodes.min() < nodes.max() || config.join.part() != 0 || orders.InReserve();
  // This also holds before the Welcome: a server that has read the Join removes the node again, and
  // one that has refused it no longer reads.
  if (signal == SIGTERM && session.connected() && !config.serves && replaceable) {
    out.Add(Say{"preempted: this node leaves the job (another signal kills its workers at once)"});
    SendLeave(v1::PREEMPTED, reason);
    // A script that has ended by itself was not ended by this.
    if (generation.IsHealthy()) NoteEnd(v1::PREEMPTED, reason);
    return Leave(Exit{kExitSignalBase + signal, "", {}, {}}, session.StopGrace());
  }
  out.Add(
      Say{signal == kWarningSignal
              ? "the scheduler warns that it takes the nodes away: the job ends now, and can be "
                "continued later"
              : "stopping the job (another signal kills its workers at once)"});
  departure.cancel_signal = signal;
  // An agent that has just adopted workers is still connecting: it will reach the server or fail to
  // shortly.
  const bool connecting = generation.Alive() && session.away_reason().empty();
  if (!session.connected() && !connecting) {
    return Leave(Exit{StatusOfCancel(signal), "", {}, {}}, session.StopGrace());
  }
  departure.cancel_by =
      now + kCancelMargin + (generation.Alive() ? session.StopGrace() : absl::ZeroDuration());
  if (session.connected()) SendCancel();
}

void AgentCore::Impl::SendCancel() {
  CADRE_CHECK(departure.cancel_signal != 0, "no signal has cancelled the job");
  v1::NodeMessage message;
  v1::Cancel& cancel = *message.mutable_cancel();
  cancel.set_signal(departure.cancel_signal);
  cancel.set_at_once(departure.at_once);
  cancel.set_reason(
      absl::StrCat(SignalName(departure.cancel_signal), " at node ", config.join.node()));
  if (departure.cancel_signal == kWarningSignal) cancel.set_cause(v1::PREEMPTED);
  out.Send(std::move(message), generation.id());
}

void AgentCore::Impl::SendLeave(v1::FailureCause cause, const std::string& reason) {
  v1::NodeMessage message;
  message.mutable_leave()->set_reason(reason);
  message.mutable_leave()->set_cause(cause);
  out.Send(std::move(message), generation.id());
}

void AgentCore::Impl::Leave(Exit exit, absl::Duration grace) {
  CADRE_CHECK(!departure.exit, "the agent is leaving already");
  departure.exit = std::move(exit);
  out.StopSending();
  orders.next.reset();
  if (!generation.HasProcesses()) return Finish();
  departure.leave_by = now + grace + kKillMargin;
  if (hangs.probing() && grace > absl::ZeroDuration()) {
    departure.leave_by = departure.leave_by + (hangs.over_by() - now);
  }
  if (!generation.StopsAll() || grace == absl::ZeroDuration()) Stop(grace);
}

void AgentCore::Impl::LeaveRefused(Exit exit) {
  if (!config.adopted || session.ever_welcomed()) {
    return Leave(std::move(exit), session.StopGrace());
  }
  exit.leaves_workers = true;
  absl::StrAppend(&exit.message, "; the workers that it was to take over keep running");
  departure.done = true;
  out.Add(std::move(exit));
}

void AgentCore::Impl::LeaveIfDue() {
  if (departure.exit) {
    if (now < departure.leave_by) return;
    if (departure.exit->message.empty()) {
      departure.exit->message = "some processes on this node outlived SIGKILL";
    }
    return Finish();
  }
  if (departure.cancel_by <= now) {
    return Leave(
        Exit{StatusOfCancel(departure.cancel_signal),
             absl::StrCat(session.ServerName(),
                          " did not end the job in time; this launcher leaves without a verdict"),
             {},
             {}},
        absl::ZeroDuration());
  }
  if (session.lost_for_good() && generation.id().exists() && !generation.IsHealthy()) {
    return LeaveWithoutVerdict();
  }
  const absl::Duration timeout = AwayTimeout();
  if (!session.away_since() || now < *session.away_since() + timeout) return;
  const std::string time = absl::FormatDuration(timeout);
  if (generation.Alive()) {
    SendLeave(v1::NODE_LOST, absl::StrCat("it had no contact with the server for ", time));
  }
  const std::string& reason = session.away_reason();
  Leave(Exit{kExitUnavailable,
             absl::StrCat(
                 session.ServerName(), " could not be reached for ", time, ": ",
                 reason.empty() ? "no answer" : reason,
                 session.ever_welcomed() || config.adopted
                     ? ""
                     : "; if the job ended before this node came, only the node that ran the "
                       "server knows how"),
             {},
             {}},
        session.StopGrace());
}

void AgentCore::Impl::LeaveWithoutVerdict() {
  const Workers& workers = generation.workers();
  const bool succeeded = generation.running() && !generation.failure() &&
                         std::all_of(workers.begin(), workers.end(),
                                     [](const auto& worker) { return worker.second.exited(); });
  Leave(Exit{kExitUnavailable,
             absl::StrCat(session.ServerName(), " has ended, and nothing tells how the job ended: ",
                          session.away_reason(),
                          succeeded ? "; the workers of this node had all succeeded" : ""),
             {},
             {}},
        succeeded ? absl::ZeroDuration() : session.StopGrace());
}

void AgentCore::Impl::Finish() {
  CADRE_CHECK(departure.exit.has_value() && !departure.done, "Exit is emitted once");
  FailStoreCalls(absl::AbortedError("the job is over on this node"));
  departure.done = true;
  Exit& exit = *departure.exit;
  if (exit.verdict.outcome() == v1::JOB_PHASE_UNSPECIFIED) {
    exit.own.set_job(config.job);
    exit.own.set_generations(generation.id().number);
    exit.own.set_restarts(orders.restarts);
    const bool cancelled = exit.status > kExitSignalBase;
    if (generation.failure()) {
      *(cancelled ? exit.own.add_earlier() : exit.own.mutable_root_cause()) = *generation.failure();
    }
  }
  out.Add(std::move(exit));
}

int ExitStatusOfRejection(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
      return kExitTryLater;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return kExitUnavailable;
    default:
      return kExitInternal;
  }
}

int StatusOfCancel(int signal) {
  return signal == kWarningSignal ? kExitTryLater : kExitSignalBase + signal;
}

}  // namespace cadre::agent
