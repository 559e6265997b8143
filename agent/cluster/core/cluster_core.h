// The state machine of a cluster's agent: decides what to do on each order of the server, each exit
// of a launcher and each signal. Pure, like agent/core: the host (agent/cluster/cluster_agent.h)
// feeds it events with the time and executes the commands in order.
//
// An allocation is one job's share of this node; the wire calls it a part. It runs from
// StartLauncher to AllocationGone and holds its GPUs that long. Its end is reported on a stream
// that the server has accepted; until then the allocation counts as running.
//
// The first signal closes the agent: it ends its launchers with grace and takes no new ones. It
// stays connected and reports their ends, so that the server starts nothing of theirs elsewhere
// while they still save. When nothing runs any more it leaves the cluster and ends. Without a
// server it does the same. The second signal ends it at once.
#ifndef CADRE_AGENT_CLUSTER_CORE_CLUSTER_CORE_H_
#define CADRE_AGENT_CLUSTER_CORE_CLUSTER_CORE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/core/agent_core.h"
#include "base/time.h"
#include "proto/cluster.pb.h"

namespace cadre::agent {

// --- events; those of the link, signals and the time are defined in agent/core ---
// A launcher could not be handed to the supervisor.
struct LauncherFailed {
  uint64_t id;
  std::string why;
  v1::PartBlame blame = v1::BLAME_NODE;
};
// The launcher's process has ended; processes it started may be left. `end`: the report for the
// server once they are gone.
struct LauncherEnded {
  uint64_t id;
  v1::PartReport end;
};
// No process of the allocation is left.
struct AllocationGone {
  uint64_t id;
};
// SIGKILL does not end a process of the allocation; `text` is "outlives SIGKILL: ...".
struct AllocationUnkillable {
  uint64_t id;
  std::string text;
};
using ClusterEvent =
    std::variant<LinkUp, LinkDown, ServerMessageReceived, SignalReceived, LauncherFailed,
                 LauncherEnded, AllocationGone, AllocationUnkillable, AgentTick>;

// --- commands; SendToServer and Say are defined in agent/core ---
// LauncherFailed follows, or LauncherEnded and, after a StopLauncher, AllocationGone.
struct StartLauncher {
  v1::StartPart start;
  std::vector<uint32_t> gpus;
  // The server's Welcome names it; 0 if its version knows only tokens that do not name a server.
  uint64_t server_id = 0;
};
// Sends SIGTERM, and after `grace` SIGKILL, to all remaining processes of the allocation.
struct StopLauncher {
  uint64_t id;
  absl::Duration grace;
};
struct RemoveFiles {
  uint64_t id;
};
// Reads a piece of a log for the server; the answer is sent as a LogChunk.
struct AnswerLog {
  v1::ReadLog read;
};
// The last command. OK: a signal ended the agent.
struct EndAgent {
  absl::Status status;
};
using ClusterCommand =
    std::variant<SendToServer, StartLauncher, StopLauncher, RemoveFiles, AnswerLog, Say, EndAgent>;

struct ClusterCoreConfig {
  // Its list of running allocations is left empty.
  v1::AgentJoined node;
  uint64_t incarnation = 0;
  // The server's name, for messages.
  std::string server;
  // Indices of the GPUs that this node gives to allocations; as many as `node.gpus`.
  std::vector<uint32_t> gpus;
};

class ClusterCore {
 public:
  explicit ClusterCore(ClusterCoreConfig config);

  std::vector<ClusterCommand> Step(MonoTime now, const ClusterEvent& event);
  MonoTime NextDeadline() const;

  // Allocations that run or have processes left, with their GPUs.
  std::map<uint64_t, std::vector<uint32_t>> Allocations() const;

 private:
  struct Running {
    // The GPUs that it may use, and those of them that belong to it. Those of a step belong to the
    // allocation `within` until that has ended.
    std::vector<uint32_t> gpus;
    std::set<uint32_t> own_gpus;
    // The allocation of the step's batch job; 0: it is no step.
    uint64_t within = 0;
    // No launcher runs in it; its GPUs are for steps.
    bool holds = false;
    // A step that may use what other steps use.
    bool overlaps = false;
    absl::Duration grace;
    // When the launcher is to be stopped.
    MonoTime stop_at = MonoTime::Never();
    // Set once its launcher has ended: the report for when no process of the allocation is left.
    v1::PartReport end;
    // Description of processes that SIGKILL does not end; empty: none are known.
    std::string unkillable;
  };

  void OnLinkDown(const absl::Status& status);
  // The server does not accept this agent, which ends it, unless it is closing: then it goes on
  // without the server.
  void OnRefused(const absl::Status& status);
  void OnServerMessage(const v1::ServerMessage& message);
  void OnOrder(const v1::AgentOrder& order);
  void OnStart(const v1::StartPart& start);
  // The GPUs that the step gets of those that its batch job has here; nullopt: too few of them are
  // left.
  std::optional<std::vector<uint32_t>> GpusOfBatchJob(const v1::StartPart& start) const;
  // Gives the GPU of an allocation that ends to a step of the same batch job that uses it, if there
  // is one, or else frees it.
  void PassOn(uint32_t gpu, uint64_t batch_allocation);
  void OnStop(const v1::StopPart& stop);
  void OnSignal(int signal);
  void OnLauncherEnded(const LauncherEnded& ended);
  void OnUnkillable(const AllocationUnkillable& unkillable);
  void ReportUnkillable(uint64_t id, const std::string& text);
  // Frees the allocation's GPUs and reports its end.
  void EndAllocation(uint64_t id, v1::PartReport end);
  // Aborts unless as many GPUs are free or allocated as the node has.
  void CheckGpus() const;
  void OnDeadlines();
  void Report(v1::PartReport end);
  void ReportUnstarted(uint64_t id, const std::string& text, v1::PartBlame blame);
  void Send(v1::AgentReport report);
  void SendJoined();
  void SendClosing();
  // Tells the server that nothing runs here any more, and ends.
  void Leave();

  const ClusterCoreConfig config_;
  MonoTime now_;
  std::vector<ClusterCommand> commands_;
  std::map<uint64_t, Running> running_;
  std::set<uint32_t> free_gpus_;
  // Reports of ended allocations that the server may not have received.
  std::map<uint64_t, v1::PartReport> unreported_;
  bool connected_ = false;
  bool ever_welcomed_ = false;
  std::string away_;
  absl::Duration lease_;
  // The id of the server that has welcomed this agent.
  uint64_t server_id_ = 0;
  MonoTime renew_at_ = MonoTime::Never();
  // A signal has come.
  bool closing_ = false;
  std::optional<absl::Status> end_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_CORE_CLUSTER_CORE_H_
