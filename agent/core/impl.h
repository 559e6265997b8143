// State of the agent core. Orders from the server are in orders.cc, what happens on this node in
// local_events.cc, how far its workers are in progress.cc, those that are kept in rejoin.cc,
// leaving and deadlines in agent_core.cc.
#ifndef CADRE_AGENT_CORE_IMPL_H_
#define CADRE_AGENT_CORE_IMPL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/core/agent_core.h"
#include "agent/core/store_calls.h"

namespace cadre {

// How long workers may outlive the SIGKILL they were sent before the agent leaves without them.
inline constexpr absl::Duration kKillMargin = absl::Seconds(2);
// How long the server may take, beyond the stop grace, to act on a Cancel.
inline constexpr absl::Duration kCancelMargin = absl::Seconds(2);
// Once it has: how long beyond the grace it may wait for the other nodes.
inline constexpr absl::Duration kOtherNodesMargin = absl::Seconds(12);
// Progress of the node's workers goes up at most once within this.
inline constexpr absl::Duration kProgressInterval = absl::Seconds(1);
// Before a worker counts as hanging the agent must have had time to read what the worker reported
// while the agent itself stood still.
inline constexpr absl::Duration kReadTime = absl::Milliseconds(100);
// With strict fencing: the part of the lease, counted from when the last message was sent that the
// server has answered, after which the workers are killed. The rest is for their end.
inline constexpr double kFencePart = 0.8;
// Renewals whose answer is waited for.
inline constexpr size_t kRenewalsMax = 16;
// How long a look at workers that hang may take: for what is sent to the server, and with native
// stacks before they are stopped.
inline constexpr absl::Duration kEvidenceLimit = absl::Milliseconds(600);
inline constexpr absl::Duration kStacksLimit = absl::Seconds(6);
// Workers of which a report of a hang tells, those over their timeout first, and of which it brings
// the last lines: it has to fit into one message.
inline constexpr size_t kMaxRanksInEvidence = 512;
inline constexpr size_t kMaxQuotedRanks = 64;
// Longest text of a server or a worker that is passed on.
inline constexpr size_t kMaxErrorText = 1024;
// A worker that gave the generation up while nobody has ended it: how long the server may take to
// hear of the cause before it is told of this.
inline constexpr absl::Duration kGiveUpAfter = absl::Milliseconds(500);
// Until the server names one.
inline constexpr absl::Duration kDefaultLease = absl::Seconds(10);
inline constexpr absl::Duration kDefaultStopGrace = absl::Seconds(30);

struct AgentCore::Impl {
  enum class Phase {
    kIdle,      // no worker of ours is alive; connecting or waiting for an assignment
    kRunning,   // StartWorkers was given, all of them may or may not have exited
    kStopping,  // StopWorkers was given; AllGone will come, and the kept workers
    kHolding,   // nothing runs but kept workers, which wait for the next assignment
    kDone,      // Exit was given
  };

  struct Worker {
    int32_t pid = 0;  // 0: not started yet
    bool rejoined = false;
    bool may_rejoin = false;
    std::optional<MonoTime> waits_since;  // for the next generation
    std::string waits_because;
    bool gave_up = false;  // the server was told of that
    bool late = false;     // it was to go on, and did not come in time
    std::optional<v1::WorkerExited> exited;
    std::optional<v1::Progress> progress;  // newest that it reported
    // When it last showed progress; unset for a program that shows none, which cannot hang by this
    // measure. And when it last wrote something, or started.
    std::optional<MonoTime> progressed_at;
    MonoTime wrote_at;
  };

  explicit Impl(AgentConfig c);

  // orders.cc
  void OnServerSaid(const v1::ServerMessage& message);
  void OnWelcome(const v1::Welcome& welcome);
  void OnRenewed(uint64_t number);
  void OnRejected(const v1::Rejected& rejected);
  void OnAssign(const GenerationId& assigned, const v1::Assign& assign);
  void OnStop(const GenerationId& stopped, const v1::Stop& stop);
  void OnFinished(const v1::Finished& finished);
  void Start(const GenerationId& assigned, const v1::Assign& assign);
  void SayWorkerStarted(uint32_t local_rank, const Worker& worker);
  void SpeakAgain();

  // local_events.cc
  void OnWorkerRuns(const WorkerRuns& event);
  void OnWorkerDied(const WorkerDied& event);
  void OnAllGone(const AllGone& event);
  void OnSupervisorLost();
  void OnSignal(int signal);
  void OnWorkerAsked(const v1::StoreRequest& request);

  // rejoin.cc
  void OnWorkerMayRejoin(const WorkerMayRejoin& event);
  void OnWorkerWaits(const WorkerWaits& event);
  // Those that the order to stop lets live, of those that can.
  std::set<uint32_t> WorkersToKeep(const v1::Stop& stop) const;
  void StopButKeep(absl::Duration grace, std::set<uint32_t> keep, const std::string& reason);
  void OnKeptWorkerDied(uint32_t local_rank);
  void ReportGivenUp();
  void OnRejoinDeadlines();
  MonoTime RejoinDeadline() const;
  // Nothing of the generation runs any more: goes on to what comes then.
  void EndGenerationIfClear();
  void SendStop(absl::Duration grace);

  // progress.cc
  void OnProgress(const WorkerProgress& event);
  void OnAlive(const WorkerAlive& event);
  void OnWrote(const WorkerWrote& event);
  void OnEvidenceFound(const EvidenceFound& event);
  void OnEvidenceDone(const EvidenceDone& event);
  void OnInspect(const GenerationId& inspected);
  void OnStatus(const v1::JobStatus& status);
  void OnProgressDeadlines();
  MonoTime ProgressDeadline() const;
  // The last sign of life that counts, absent where none does; how long the next one may take, zero
  // for as long as it likes; and whether it was output.
  struct Quiet {
    std::optional<MonoTime> since;
    absl::Duration limit;
    bool by_output = false;
  };
  Quiet QuietSince(const Worker& worker) const;
  // When the worker counts as hanging; Never() for one that no timeout applies to.
  MonoTime HangsAt(const Worker& worker) const;
  Worker* FindRunning(uint64_t generation, uint32_t local_rank);
  void SendProgress();
  void LookForHangs();
  void AskForEvidence();
  // To the server, bare where nothing was found in time.
  void ReportFindings();
  void SendEvidence(std::vector<v1::RankEvidence> ranks);

  // agent_core.cc
  void OnLinkUp();
  void OnLinkDown(const absl::Status& status);
  void OnDeadlines();
  // Waits for a look at the workers that is under way, unless there is no grace.
  void StopAlive(absl::Duration grace);
  // Exits with `exit` once no worker is left, at the latest kKillMargin after `grace`.
  void Leave(Exit exit, absl::Duration grace);
  void Finish();
  v1::Verdict OwnVerdict() const;
  // Leaves because the server does not want this agent. Workers of another one, whose place it was
  // to take, are not its to stop.
  void LeaveRefused(Exit exit);
  void Up(v1::NodeMessage message, const GenerationId& named);
  void SendJoin();
  void SendRenew();
  void SendStopped(const GenerationId& stopped);
  void SendCancel();
  // What to exit with when the server does not answer a Cancel.
  int CancelStatus() const;
  // The server has answered what was sent then.
  void Confirm(MonoTime sent_at);
  // When the workers are killed if nothing is answered; Never() without strict fencing.
  MonoTime FenceAt() const;
  void FenceIfDue();
  // In words, what becomes of the workers while the server is away.
  std::string Prospect() const;
  void FailStoreCalls(const absl::Status& status);
  bool Alive() const { return phase == Phase::kRunning || phase == Phase::kStopping; }
  // What messages that speak of no particular generation name.
  GenerationId Named() const { return Alive() ? started : GenerationId{}; }
  // Whether the server that welcomed this node is the one whose generation was started.
  bool IsServersOwn() const { return started.exists() && started.server_id == server_id; }
  bool HasProcesses() const { return Alive() || phase == Phase::kHolding; }
  std::string Server() const;
  absl::Duration StopGrace() const;
  // How long the server may be away.
  absl::Duration Patience() const;

  AgentConfig config;
  MonoTime now;
  std::vector<AgentCommand> commands;
  Phase phase = Phase::kIdle;

  // The server.
  bool link_up = false;
  bool welcomed = false;  // on this connection
  bool ever_welcomed = false;
  bool taken = false;  // in this process's life
  uint64_t server_id = 0;
  absl::Duration lease = kDefaultLease;
  v1::JobSpec spec;  // as the server holds it, once welcomed
  MonoTime renew_at = MonoTime::Never();
  // Since when the server has been away; unset while welcomed.
  std::optional<MonoTime> away_since;
  std::string away_reason;  // last one that was said

  // Strict fencing.
  MonoTime join_sent_at;
  MonoTime confirmed_at;
  uint64_t renewals = 0;
  std::map<uint64_t, MonoTime> unanswered;  // renewals, with when they were sent
  bool fenced = false;                      // the workers of `started` were killed by it

  // Workers. The newest generation that was started: its workers are in `workers`, alive or not.
  GenerationId started;
  bool asked_to_save = false;  // its workers were asked for a checkpoint
  // The newest number of this server's generations that was started here or must not be any more.
  uint64_t newest = 0;
  std::optional<GenerationId> stop_ordered;  // the server wants NodeStopped for it
  uint32_t held_port;
  uint32_t first_rank = 0;  // of `started`
  std::map<uint32_t, Worker> workers;
  std::optional<std::pair<GenerationId, v1::Assign>> next_assign;  // waits for AllGone
  StoreCalls store_calls;
  std::optional<v1::Failure> failure;  // the first among them; the server may not know of it
  uint32_t restarts = 0;               // as the server said last

  // Workers that are not stopped with their generation, until when they may take to give it up, and
  // whether everything else is gone.
  std::set<uint32_t> kept;
  MonoTime keep_by = MonoTime::Never();
  std::string stop_reason;
  bool others_gone = false;

  // Progress.
  bool progress_news = false;
  MonoTime progress_due;  // not sent again before this
  // A look at the workers is under way: until when its findings are waited for (Never() once they
  // are in), and until when a stop waits for its end.
  bool looking = false;
  MonoTime findings_by = MonoTime::Never();
  std::vector<v1::RankEvidence> findings;
  MonoTime looking_by = MonoTime::Never();
  // The grace of the stop that waits for it.
  std::optional<absl::Duration> held_stop;
  bool inspected = false;  // the server asked for what is found
  // What was found of a hang; sent again to a server that comes back.
  std::optional<v1::NodeEvidence> hang;

  // Leaving.
  int cancel_signal = 0;  // of the Cancel that the server has not answered with Finished
  MonoTime cancel_by = MonoTime::Never();
  std::optional<Exit> leaving;
  MonoTime leave_by = MonoTime::Never();
};

}  // namespace cadre

#endif  // CADRE_AGENT_CORE_IMPL_H_
