// The agent core: takes an event, finds whose it is, and asks those for what follows. Orders from
// the server are in orders.cc, what happens on this node in local_events.cc, what follows from a
// hang in hangs.cc, how the agent comes to its end in leaving.cc, and deadlines, by which a hang is
// noticed too, in agent_core.cc.
#ifndef CADRE_AGENT_CORE_IMPL_H_
#define CADRE_AGENT_CORE_IMPL_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "agent/core/agent_core.h"
#include "agent/core/generation.h"
#include "agent/core/hang_watch.h"
#include "agent/core/outbox.h"
#include "agent/core/session.h"
#include "agent/core/store_calls.h"

namespace cadre::agent {

// Longest text of a server or a worker that is passed on.
inline constexpr size_t kMaxErrorText = 1024;

struct AgentCore::Impl {
  // What the server has ordered beyond the generation that runs.
  struct Orders {
    // The job has a generation, and this node is not in it: who is in one is given it before the
    // status that tells of it.
    bool InReserve() const { return current > newest && !next; }

    // The newest number of this server's generations that was started here or must not be any more.
    uint64_t newest = 0;
    // The job's generation, or the last one while it gathers again, as the server said last.
    uint64_t current = 0;
    // It wants NodeStopped for this one.
    std::optional<GenerationId> stop;
    // Waits until nothing of the generation before runs.
    std::optional<std::pair<GenerationId, v1::Assign>> next;
    bool checkpoint_asked = false;  // of the workers that run
    uint32_t restarts = 0;          // as it said last
    std::string versions_differ;    // as people were told last
  };
  struct Departure {
    int cancel_signal = 0;  // of the Cancel that the server has not answered with Finished
    MonoTime cancel_by = MonoTime::Never();
    bool at_once = false;      // it has been said twice
    std::optional<Exit> exit;  // the agent leaves with it once no worker is left
    MonoTime leave_by = MonoTime::Never();
    bool done = false;  // Exit was given
  };
  struct ProgressReport {
    bool news = false;
    MonoTime due;  // not sent again before this
  };

  explicit Impl(AgentConfig c);

  // agent_core.cc
  void Take(const AgentEvent& event);
  void OnLinkDown(const absl::Status& status);
  // Why the server is away, and what becomes of that, unless it was said last.
  void SayAway(const std::string& reason);
  void OnDeadlines();
  MonoTime NextDeadline() const;
  // When the workers are killed if the server does not answer.
  MonoTime FenceAt() const;
  void FenceIfDue();
  // How long the server may be away.
  absl::Duration Patience() const;
  // Waits for a look at the workers that is under way, unless there is no grace.
  void Stop(absl::Duration grace, std::set<uint32_t> keep = {}, const std::string& reason = "");
  void FailStoreCalls(const absl::Status& status);
  // Whether the server hears what the workers of the generation do.
  bool Tells() const { return session.welcomed() && session.Owns(generation.id()); }

  // orders.cc
  void OnServerSaid(const v1::ServerMessage& message);
  void OnWelcome(const v1::Welcome& welcome);
  void OnRejected(const v1::Rejected& rejected);
  void OnAssign(const GenerationId& assigned, const v1::Assign& assign);
  void OnStop(const GenerationId& stopped, const v1::Stop& stop);
  void OnStatus(const v1::JobStatus& status);
  void OnFinished(const v1::Finished& finished);
  void Start(const GenerationId& assigned, const v1::Assign& assign);
  // The server hears again what it may have missed.
  void SpeakAgain();
  void SendStopped(const GenerationId& stopped);

  // local_events.cc
  void OnWorkerDied(const WorkerDied& event);
  void OnUnkillable(const WorkerUnkillable& event);
  void OnSupervisorLost(const SupervisorLost& event);
  void OnWorkerAsked(const v1::StoreRequest& request);
  // Goes on to what comes when nothing of the generation runs any more.
  void GoOnIfClear();
  void SendProgress();

  // hangs.cc
  void OnInspect(const GenerationId& inspected, bool briefly);
  void Look(bool briefly);
  // Because a worker hangs, or stands still.
  void LookIfDue();
  void ReportFindings();
  void OnEvidenceFound(const EvidenceFound& event);
  void OnEvidenceDone(uint64_t number);

  // leaving.cc
  void OnSignal(int signal);
  void SendCancel();
  void SendLeave(v1::FailureCause cause, const std::string& reason);
  // Exits with `exit` once no worker is left, soon after `grace` at the latest.
  void Leave(Exit exit, absl::Duration grace);
  // Leaves because the server does not want this agent. Workers of another one, whose place it was
  // to take, are not its to stop.
  void LeaveRefused(Exit exit);
  void LeaveIfDue();
  // Because the server will never say how the job ended.
  void LeaveWithoutVerdict();
  void Finish();

  const AgentConfig config;
  MonoTime now;
  Outbox out;
  Session session;
  Generation generation;
  Orders orders;
  HangWatch hangs;
  ProgressReport progress;
  PendingStoreCalls store_calls;
  uint32_t held_port;
  Departure departure;
};

v1::NodeMessage MessageOf(const v1::NodeStacks& stacks);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_IMPL_H_
