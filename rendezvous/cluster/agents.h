// The agents of the cluster's nodes: their connections and leases, and which agents may join. All
// times are lease_now() of the lease clock. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_CLUSTER_AGENTS_H_
#define CADRE_RENDEZVOUS_CLUSTER_AGENTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "proto/cluster.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/state.pb.h"
#include "proto/version.pb.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/lease_clock.h"
#include "rendezvous/step/stream_ids.h"

namespace cadre::cluster {

struct Agent {
  std::optional<StreamId> stream;
  uint64_t incarnation = 0;
  v1::Version version;
  // Without a stream: when the stream ended.
  MonoTime last_heard;
  // Allocations whose launchers the agent still runs though the server released them when it
  // declared the agent lost. The node gets nothing new until they have ended.
  std::set<uint64_t> leftovers;
  // It ends its launchers and leaves: the node gets nothing new.
  bool closing = false;
  // The node is in the state with which the server began, and its agent has not connected since.
  bool expected = false;
  // When the timer fires. It may be too early; then it is set again.
  MonoTime timer = MonoTime::Never();
};

class Agents {
 public:
  explicit Agents(absl::Duration lease) : lease_(lease) {}

  // Returns null if the node has no agent, or none that may still reconnect.
  const Agent* Find(const std::string& node) const;
  bool IsConnected(const std::string& node) const;
  // Returns null if the stream is no agent's.
  const std::string* NodeOf(StreamId stream) const;
  bool AnyExpected() const { return expected_ > 0; }

  // Called when the server begins with the node in its state: its agent has a lease to connect.
  void Expect(const std::string& node, MonoTime now);
  // Connects the agent on `stream` in place of an earlier stream. Processes that could not be
  // killed stay known for the allocations that the agent still `runs`: it reports them again, but
  // only later.
  void Connect(const std::string& node, StreamId stream, uint64_t incarnation,
               const std::set<uint64_t>& runs, MonoTime now);
  // Sets the version that the agent reported with its stream.
  void SetVersion(const std::string& node, const v1::Version& version);
  // Called when the stream has ended. The agent has a lease to reconnect.
  void Disconnect(StreamId stream, MonoTime now);
  void RenewLease(const std::string& node, MonoTime now);
  void AddLeftover(const std::string& node, uint64_t allocation);
  void SetClosing(const std::string& node);
  // The processes that could not be killed, by node and allocation, in words: "outlives SIGKILL:
  // ...".
  const std::map<std::string, std::map<uint64_t, std::string>>& unkillable() const {
    return unkillable_;
  }
  bool HasUnkillable(const std::string& node, uint64_t allocation) const;
  void AddUnkillable(const std::string& node, uint64_t allocation, const std::string& text);
  // Called when nothing is left of the allocation on the node.
  void OnAllocationEnded(const std::string& node, uint64_t allocation);
  void Erase(const std::string& node);

  // Returns a node whose agent's lease has run out, if there is one.
  std::optional<std::string> NextExpired(const step::LeaseClock& clock);
  MonoTime NextDeadline() const;

  // Gives disconnected agents a whole new lease, since the server has admitted none for a while.
  void AwaitAbsent(MonoTime now);

 private:
  void SetTimer(const std::string& node, MonoTime at);
  void ForgetUnkillableExcept(const std::string& node, const std::set<uint64_t>& runs);

  const absl::Duration lease_;
  std::map<std::string, Agent> agents_;
  size_t expected_ = 0;
  std::map<StreamId, std::string> streams_;
  std::map<std::string, std::map<uint64_t, std::string>> unkillable_;
  std::set<std::pair<MonoTime, std::string>> timers_;
};

// Checks an agent's description of its node. Returns INVALID_ARGUMENT, or UNAVAILABLE if the
// agent's version of Cadre and this one do not work together.
absl::Status CheckAgent(const v1::AgentJoined& agent);

// Checks whether the cluster may add the node; OK if it has it already. ALREADY_EXISTS: another
// node's name differs only in case. RESOURCE_EXHAUSTED: there are too many nodes.
absl::Status CheckNewNode(const std::string& node, const state::Cluster& cluster);

// Whether the agent describes the node as it is known.
bool SameNode(const saved::ClusterNode& known, const v1::AgentJoined& agent);

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_AGENTS_H_
