// What a cluster's agent does on each order of the server, each end of a launcher and each signal.
// Pure, like agent/core: the host (agent/cluster/cluster_agent.h) feeds it events with the time and
// carries out the commands in order.
//
// A part runs from StartLauncher to PartGone; its GPUs are its own as long. That it has ended is
// said on a stream that the server has taken; until then the part counts as running.
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

// --- events; those of the link, signals and the time are agent/core's ---
// A launcher could not even be given to the supervisor.
struct LauncherFailed {
  uint64_t id;
  std::string why;
  v1::PartBlame blame = v1::BLAME_NODE;
};
// Its process has ended; it may have left others. `end`: what the server is told of it then.
struct LauncherEnded {
  uint64_t id;
  v1::PartReport end;
};
// Nothing of the part is left.
struct PartGone {
  uint64_t id;
};
// SIGKILL does not end a process of the part: "outlives SIGKILL: ...".
struct PartRemains {
  uint64_t id;
  std::string text;
};
using ClusterEvent = std::variant<LinkUp, LinkDown, ServerSaid, SignalReceived, LauncherFailed,
                                  LauncherEnded, PartGone, PartRemains, AgentTick>;

// --- commands; SendUp and Say are agent/core's ---
// Ends with LauncherFailed, or with LauncherEnded and, after a StopLauncher, PartGone.
struct StartLauncher {
  v1::StartPart start;
  std::vector<uint32_t> gpus;
  // As the server's Welcome said it. 0: its version knows only tokens that do not name it.
  uint64_t server_id = 0;
};
// SIGTERM, after `grace` SIGKILL, to all that the part has left.
struct StopLauncher {
  uint64_t id;
  absl::Duration grace;
};
struct RemoveFiles {
  uint64_t id;
};
// Read this for the server; the answer goes up as a LogChunk.
struct AnswerLog {
  v1::ReadLog read;
};
// The last command. OK: it was told to end.
struct EndAgent {
  absl::Status status;
};
using ClusterCommand =
    std::variant<SendUp, StartLauncher, StopLauncher, RemoveFiles, AnswerLog, Say, EndAgent>;

struct ClusterCoreConfig {
  // Without parts.
  v1::AgentJoined node;
  uint64_t incarnation = 0;
  // Of the server, for people.
  std::string server;
  // Indices of the GPUs that it gives to parts; as many as `node.gpus`.
  std::vector<uint32_t> gpus;
};

class ClusterCore {
 public:
  explicit ClusterCore(ClusterCoreConfig config);

  std::vector<ClusterCommand> Step(MonoTime now, const ClusterEvent& event);
  MonoTime NextDeadline() const;

  // Parts that run, or of which something is left, and their GPUs.
  std::map<uint64_t, std::vector<uint32_t>> Parts() const;

 private:
  struct Running {
    std::vector<uint32_t> gpus;
    absl::Duration grace;
    // When it is told to end.
    MonoTime stop_at = MonoTime::Never();
    // Once its launcher has ended: what is said of it when nothing else of it is left.
    v1::PartReport end;
    // What SIGKILL does not end of it; empty: nothing is known to be so.
    std::string remains;
  };

  void OnLinkDown(const absl::Status& status);
  void OnServerSaid(const v1::ServerMessage& message);
  void OnOrder(const v1::AgentOrder& order);
  void OnStart(const v1::StartPart& start);
  void OnStop(const v1::StopPart& stop);
  void OnSignal(int signal);
  void OnLauncherEnded(const LauncherEnded& ended);
  void OnRemains(const PartRemains& remains);
  void ReportRemains(uint64_t id, const std::string& text);
  // What it had is free again.
  void Forget(uint64_t id, v1::PartReport end);
  void OnDeadlines();
  void Report(v1::PartReport end);
  void ReportUnstarted(uint64_t id, const std::string& text);
  void Send(v1::AgentReport report);
  void SayJoined();

  const ClusterCoreConfig config_;
  MonoTime now_;
  std::vector<ClusterCommand> commands_;
  std::map<uint64_t, Running> running_;
  std::set<uint32_t> free_gpus_;
  // Ends that the server may not have heard of.
  std::map<uint64_t, v1::PartReport> unreported_;
  bool up_ = false;
  bool ever_welcomed_ = false;
  std::string away_;
  absl::Duration lease_;
  // Of the server that has welcomed this agent.
  uint64_t server_id_ = 0;
  MonoTime renew_at_ = MonoTime::Never();
  bool leaving_ = false;
  std::optional<absl::Status> end_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_CORE_CLUSTER_CORE_H_
