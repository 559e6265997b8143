// Inside of Core: durable state, what connects it with the world, and the steps of its machine.
// Each group of methods has its own file. One thread.
#ifndef CADRE_RENDEZVOUS_CORE_CORE_IMPL_H_
#define CADRE_RENDEZVOUS_CORE_CORE_IMPL_H_

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/generation_id.h"
#include "rendezvous/cluster/schedule.h"
#include "rendezvous/core/core.h"
#include "rendezvous/job/formation.h"
#include "rendezvous/job/progress_log.h"
#include "rendezvous/job/report.h"
#include "rendezvous/job/restart.h"
#include "rendezvous/keyspace/keyspace.h"
#include "rendezvous/state/state.h"

namespace cadre {

// Jobs that have not ended: of all, of one user, and of nobody, which are those that `cadre run`
// begins. No user keeps others out alone.
constexpr size_t kMaxLiveJobs = 10000;
constexpr size_t kMaxLiveJobsOfUser = 1000;
constexpr size_t kMaxLiveJobsOfNobody = kMaxLiveJobs / 2;
// Streams that the core has closed and whose end the host has not reported yet.
constexpr size_t kMaxClosingStreams = 65536;
// The nodes of a larger job hear of changes this often at most: with each worker's start told to
// each node, what is sent grows with the square of the nodes.
constexpr size_t kMaxNodesToldAtOnce = 16;
constexpr absl::Duration kPushInterval = absl::Milliseconds(200);
// How long the nodes that do not hang may take to say where their workers are.
constexpr absl::Duration kInquiryLimit = absl::Milliseconds(500);
// And those of a very large one once in this for each of them, so that a server sends 4,000 such
// messages a second at most.
constexpr absl::Duration kPushIntervalPerNode = absl::Microseconds(250);

// Of what changed only in its progress, nodes are told this often, and those of a large job less.
constexpr absl::Duration kProgressInterval = absl::Seconds(1);
constexpr absl::Duration kLargeProgressInterval = absl::Seconds(5);

// One open stream.
struct Session {
  std::string job;
  std::string node;
  uint64_t incarnation = 0;
};

// How a node is connected. It exists for every node of a job that has not ended; afterwards only as
// long as the stream is open.
struct Link {
  std::optional<StreamId> stream;
  MonoTime last_heard;
  // Without a stream: since when, and how long that may last.
  MonoTime gone_since;
  absl::Duration gone_limit;
  // No node has come on it since the server began, which knows it from its state.
  bool restored = false;
  // How its launcher ended, as the cluster's agent says; empty: it has said nothing.
  std::string launcher_end;
  // It is not lost before this, whatever the above say.
  MonoTime spared_until;
  // It kills its workers before its lease ends, and not at once.
  bool strict_fencing = false;
  // When its timer fires; it may be early, then it is set again.
  MonoTime timer = MonoTime::Never();
  // The node still stops workers of this generation, which is over or another server's.
  GenerationId old_generation;
};

// Nodes are asked where their workers are, because one of them hangs.
struct HangInquiry {
  // Workers went on in their processes and wait: only one that was started anew and is absent is to
  // blame. Where there is none, this happened, if anything.
  bool for_absent = false;
  std::optional<v1::Failure> otherwise;
  MonoTime deadline;
  std::set<std::string> awaited;
  std::set<std::string> heard;
  std::vector<v1::RankEvidence> ranks;
};

// How the agent of a node of the cluster is connected. A node without one is away.
struct AgentLink {
  std::optional<StreamId> stream;
  uint64_t incarnation = 0;
  // Or, without a stream, since when it is gone.
  MonoTime last_heard;
  MonoTime timer = MonoTime::Never();
  // What it runs and should not, since it was taken for lost: it gets nothing until that is gone.
  std::set<uint64_t> strange;
};

// The volatile part of a job.
struct Live {
  std::map<std::string, Link> links;
  // Links that have a stream; those of them that could take part in a generation.
  size_t open = 0;
  size_t ready = 0;
  keyspace::Keyspace keyspace;
  // The server began anew, or could not save: until then no job fails for nodes that do not come or
  // start.
  MonoTime patient_until;
  // Since when the members of a generation could have done what they were told last: later than the
  // order when the server was away, stood still or could not say it.
  MonoTime orders_count_from;
  // The generation whose workers were asked to save, because more nodes wait. 0: none.
  uint64_t checkpoint_asked = 0;
  // The last node that came with another spec, for those who wait for it.
  std::string refusal;
  // Something changed that its nodes are shown.
  bool changed = false;
  // So did how far its workers are.
  bool progressed = false;
  ProgressLog progress;
  std::optional<HangInquiry> hang;
  // A worker gave the generation up, and nobody knows why. That is a failure from `believed_at` on:
  // the end of another one that caused it may lie unread, after this server or a connection stood
  // still.
  std::optional<v1::Failure> given_up;
  MonoTime believed_at;
  // The generation in which it was asked who is absent.
  uint64_t asked_for_absent = 0;
  MonoTime last_push = MonoTime::FromMicros(std::numeric_limits<int64_t>::min() / 2);
  // When the job must be looked at again.
  MonoTime deadline = MonoTime::Never();
};

struct Core::Impl {
  explicit Impl(const CoreConfig& config) : config(config) {}

  // core.cc: the frame of a step.
  Effects Step(MonoTime at, const Event& event);
  void Dispatch(const Event& event);
  // While nodes have leases the host calls at least this often, so that a longer gap shows that it
  // stood still.
  absl::Duration LookInterval() const { return config.lease / 6; }
  void ForgivePause(absl::Duration pause);
  void OnCanSave(bool can);
  // Nodes get the time back in which they were told nothing and let in nowhere.
  void ForgiveSilence(absl::Duration silence);
  void LinkRestoredNodes();
  void RunTimers();
  void FinishTouchedJobs();
  void PushStatus(const std::string& name, const JobState& job, Live* live);
  // When its nodes are to be told of what changed.
  MonoTime PushAt(const Live& live) const;
  void SetDeadline(const std::string& name, Live* live);
  MonoTime NextDeadline() const;
  // Forgets what is volatile of a job; its streams are closed.
  void DropLive(const std::string& name);
  JobState* FindJob(const std::string& name);
  // A record for the job, to fill in and Commit.
  v1::Record NewRecord(const std::string& job) const;
  // As JobStatus has it.
  std::string NameOfNewRun() const;
  void Commit(v1::Record record);
  v1::ServerMessage NewMessage(const std::string& job, uint64_t generation) const;
  GenerationId NamedBy(const v1::NodeMessage& message) const;
  void Send(StreamId stream, v1::ServerMessage message);
  void SendToNode(const std::string& job, const std::string& node, v1::ServerMessage message);
  void Note(const std::string& job, std::string text);
  void Touch(const std::string& job, bool changed);

  // membership.cc: nodes come, renew, leave and are lost.
  void OnNodeSaid(const NodeSaid& said);
  void OnJoin(StreamId stream, const v1::NodeMessage& message);
  bool PrepareJob(StreamId stream, const std::string& name, const v1::Join& join);
  bool MayJoin(StreamId stream, const std::string& name, const v1::Join& join);
  void Admit(StreamId stream, const std::string& name, const v1::NodeMessage& message);
  void Resume(StreamId stream, const std::string& name, const v1::NodeMessage& message);
  // The node is no member, and has workers of a generation that goes on or went by without it.
  void StopOldWorkers(StreamId stream, const std::string& name, const std::string& node,
                      const GenerationId& old);
  void Attach(StreamId stream, const std::string& name, const std::string& node,
              uint64_t incarnation);
  void SendWelcome(StreamId stream, const std::string& name);
  void SendRenewed(StreamId stream, const std::string& name, uint64_t number);
  void Reject(StreamId stream, const std::string& job, absl::StatusCode code,
              absl::string_view message);
  void OnGenerationEvent(StreamId stream, const v1::NodeMessage& message);
  // The job's view of a node whose stream is no more.
  void Detach(const Session& session);
  // Forgets the connection; its timer goes with it.
  void EraseLink(const std::string& name, Live* live, const std::string& node);
  void OnStreamClosed(StreamId stream);
  void OnLeave(const Session& session, const v1::Leave& leave);
  void Close(StreamId stream, absl::Status status);
  MonoTime LostAt(const Link& link) const;
  // Whether the host was too late to tell that the node is lost, or may have stood still just
  // before.
  bool IsToBeSpared(const Link& link) const;
  void SetNodeTimer(const std::string& job, const std::string& node, Link* link, MonoTime at);
  void OnNodeTimer(const std::string& job, const std::string& node);
  // Of a node whose connection ended.
  static std::string WhyGone(const Link& link, absl::Duration adoptable);
  // Takes the node out of the job and, where its workers are missed, stops the others.
  void RemoveNode(const std::string& name, const std::string& node, v1::FailureCause cause,
                  const std::string& reason, absl::Status close);
  // The node was silent before what was taken for the root cause happened.
  bool WasSilentBeforeFailure(const JobState& job, const Link& link) const;

  // generation.cc: generations form, run, stop and end.
  bool Advance(const std::string& name, JobState* job, Live* live);
  bool AdvanceGathering(const std::string& name, JobState* job, Live* live);
  bool AdvanceRunning(const std::string& name, JobState* job, Live* live);
  bool AdvanceStopping(const std::string& name, JobState* job, Live* live);
  Gathering GatheringOf(const JobState& job, const Live& live) const;
  bool IsReady(const Live& live, const std::string& node) const;
  std::vector<std::string> ReadyNodes(const JobState& job, const Live& live) const;
  void Form(const std::string& name, JobState* job, const Live& live, uint32_t size,
            const std::string& reason);
  void OnWorkerStarted(const Session& session, const v1::WorkerStarted& started);
  void OnWorkerExited(const Session& session, const v1::WorkerExited& exited);
  void OnWorkerGaveUp(const Session& session, const v1::WorkerGaveUp& gave_up);
  void OnNodeStopped(const Session& session, uint64_t generation, const v1::NodeStopped& stopped);
  void EndWorker(const std::string& name, uint32_t rank, const std::optional<v1::Failure>& failure);
  // Stops the running generation, or corrects why it is stopped.
  void OrderStop(const std::string& name, JobState* job, const std::string& reason,
                 const std::optional<v1::Failure>& root_cause);
  // What would follow the current generation if this ended it.
  RestartDecision DecideNext(const JobState& job,
                             const std::optional<v1::Failure>& root_cause) const;
  void Conclude(const std::string& name, JobState* job);
  void EndJob(const std::string& name, JobState* job, v1::JobPhase outcome, int exit_status,
              const std::string& message, const std::optional<v1::Failure>& root_cause);
  // The job has ended: what its nodes are told.
  v1::ServerMessage FinishedMessage(const std::string& name, const JobState& job);
  // `cause`: CANCELLED or PREEMPTED.
  void CancelJob(const std::string& name, const std::string& reason, int signal,
                 v1::FailureCause cause);
  MonoTime PhaseDeadline(const JobState& job, const Live& live) const;
  MonoTime StopDeadline(const JobState& job, const Live& live) const;
  // When it is asked who of those that were started anew has not come; Never() where nobody waits.
  MonoTime AbsenceDeadline(const JobState& job, const Live& live) const;
  std::string WaitingFor(const JobState& job, const Live& live, MonoTime at) const;
  v1::JobStatus StatusOf(const std::string& name, const JobState& job, MonoTime at,
                         Shown shown) const;
  // More nodes wait for the next generation, which its workers are to begin.
  static bool WantsCheckpoint(const JobState& job, const Live& live);

  // cluster_agents.cc: agents of the cluster's nodes come, report and are lost.
  void OnAgentSaid(StreamId stream, const v1::NodeMessage& message);
  void OnAgentJoined(StreamId stream, const v1::NodeMessage& message);
  bool MayJoinCluster(StreamId stream, const v1::NodeMessage& message);
  // What runs there and what should, made to agree.
  void ComparePart(const PartState& part, bool runs, StreamId stream);
  void OnPartReport(const std::string& node, const v1::PartReport& report);
  // "n0 (no user alice), n1 (...)".
  std::string NodesTried(const JobState& job) const;
  // The job ends, and has never begun. `try_later`: that may be worth it; else its spec is bad.
  void EndUnstarted(const std::string& name, const std::string& why, bool try_later);
  void OnAgentGone(StreamId stream);
  void OnAgentLeaving(const std::string& node);
  void OnAgentTimer(const std::string& node);
  // Nothing of the node's parts counts any more.
  void EndPartsOf(const std::string& node);
  void SetAgentTimer(const std::string& node, MonoTime at);
  void SendToAgent(const std::string& node, v1::AgentOrder order);
  void SendStart(const PartState& part);
  void SendStop(const PartState& part);

  // cluster_queue.cc: jobs are submitted and get their nodes.
  void OnSubmitted(const JobSubmitted& submitted);
  void OnDrained(const NodeDrained& drained);
  // Whether a launcher may take part in the job, or hear how it ended, as what it says it is;
  // rejects it otherwise. A user's token opens streams without a part (host/permission.h), a
  // launcher's token those of its own part, so a job that was submitted shows itself to its own
  // launchers only.
  bool MayTakePart(StreamId stream, const std::string& name, const v1::NodeMessage& message);
  void ScheduleCluster();
  void TakeBack(uint64_t id);
  // Of a job whose launcher there was given up while it may still run: nobody else would end it.
  void TakeBackFrom(const std::string& job, const std::string& node);
  std::vector<ScheduleNode> NodesToSchedule() const;
  std::vector<ScheduleJob> JobsToSchedule() const;
  void CarryOut(const Schedule& schedule);
  // Those that no node is left for end.
  void EndHopeless(const std::map<std::string, std::string>& hopeless);
  absl::Status MaySubmit(const v1::JobSpec& spec, absl::string_view user) const;
  absl::Status RefuseName(const std::string& name) const;
  // What a submitted job waits for that gathers: launchers on nodes that it has, and nodes that it
  // lacks. Empty: neither.
  std::string LaunchersAwaited(const JobState& job) const;
  // Gives back what jobs hold that have never begun and cannot at present.
  void TakeBackFromUnstarted();
  std::vector<v1::ClusterNodeStatus> ClusterNodes() const;
  absl::StatusOr<LogSource> FindLog(const v1::ReadLogRequest& request) const;

  // hang.cc: nodes say where their workers are, and the culprit is named.
  void OnEvidence(const Session& session, const v1::NodeEvidence& evidence);
  // Asks all nodes but this one.
  void BeginInquiry(const std::string& name, const std::string& except, const JobState& job,
                    Live* live);
  // Workers that went on in their processes have had no progress since.
  bool AwaitsOthers(const JobState& job, const Live& live) const;
  // Ends the inquiry once all have answered or their time is over; false: it goes on, or there is
  // none.
  bool AdvanceInquiry(const std::string& name, JobState* job, Live* live);
  bool AdvanceGivenUp(const std::string& name, JobState* job, Live* live);
  void EndInquiry(const std::string& name, JobState* job, Live* live);

  // store_calls.cc: the edge of the store.
  void OnStoreRequest(const std::string& job, const keyspace::Asker& asker,
                      const v1::StoreRequest& request);
  void DeliverAnswers(const std::string& job, std::vector<keyspace::AnswerTo> answers);
  void OnCallDropped(CallId call);
  void AbortWaiters(const std::string& job, absl::string_view message);

  const CoreConfig config;
  State state;
  std::map<std::string, Live> lives;
  std::map<StreamId, Session> sessions;
  std::set<StreamId> closing;
  std::map<CallId, std::string> calls;  // waiting calls, by job
  std::set<std::tuple<MonoTime, std::string, std::string>> node_timers;
  std::set<std::pair<MonoTime, std::string>> job_deadlines;
  std::set<std::string> touched;
  // By node, and by stream.
  std::map<std::string, AgentLink> agents;
  std::map<StreamId, std::string> agent_streams;
  std::set<std::pair<MonoTime, std::string>> agent_timers;
  // Something has changed that decides who gets which node.
  bool cluster_changed = false;
  // A server that began anew waits so long for the agents that it knows before it gives nodes away.
  MonoTime agents_awaited_until;
  // Of the jobs in the queue, as the last pass left them.
  std::map<std::string, Waiting> queue;
  bool stepped = false;
  // The host can save, as far as it has told.
  bool can_save = true;
  // What the deadlines of jobs are compared with: `now`, and it stands still while the host cannot
  // save. Leases go on, since nodes are heard.
  MonoTime clock;

  // When the last time was over in which the core was not stepped for so long that the host may
  // have stood still.
  MonoTime gap_ended_at;

  // Of the step under way.
  MonoTime now;
  absl::Duration since_last;
  Effects* out = nullptr;
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_CORE_CORE_IMPL_H_
