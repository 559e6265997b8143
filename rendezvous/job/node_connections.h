// NodeConnections: the streams and leases of a job's nodes. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_JOB_NODE_CONNECTIONS_H_
#define CADRE_RENDEZVOUS_JOB_NODE_CONNECTIONS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/generation_id.h"
#include "base/time.h"
#include "proto/rendezvous.pb.h"
#include "proto/state.pb.h"
#include "proto/version.pb.h"
#include "rendezvous/step/context.h"
#include "rendezvous/step/stream_ids.h"

namespace cadre::job {

// The connection of one node. Until the job ends each of its nodes has one; afterwards only nodes
// with an open stream. Times are lease_now() of the lease clock.
struct NodeConnection {
  std::optional<StreamId> stream;
  MonoTime last_heard;
  // Without a stream: since when, and when the node is lost unless it reconnects.
  MonoTime gone_since;
  MonoTime lost_at;
  // The server knows the node from its state only: the node has not connected since the server
  // began.
  bool restored = false;
  // The node kills its workers before its lease ends, but not as soon as its stream ends.
  bool strict_fencing = false;
  // The launcher's version, from the last stream's Join.
  v1::Version version;
  // How its launcher ended, as reported by the cluster's agent; empty if not reported.
  std::string launcher_end;
  // The node is still stopping workers of this generation, which is over or another server's.
  GenerationId old_generation;
  // The first rank that the node had in it; -1 if that is not known any more.
  int64_t old_first_rank = -1;
  // Those of these workers that SIGKILL does not end, in words by local rank. Empty if the node
  // just needs more time.
  std::map<uint32_t, std::string> unkillable;
  // When the timer fires. It may be too early; then it is set again.
  MonoTime timer = MonoTime::Never();
};

// Returns the generation that the message names. If it names no server (an older agent), this
// server's is assumed.
GenerationId NamedBy(const v1::NodeMessage& message, const step::Context& context);

class NodeConnections {
 public:
  explicit NodeConnections(const step::Context& context) : context_(context) {}

  const std::map<std::string, NodeConnection>& all() const { return all_; }
  // Returns null if the job does not have the node.
  const NodeConnection* Find(const std::string& node) const;
  std::optional<StreamId> StreamOf(const std::string& node) const;
  // Whether the node could take part in a generation: it is connected and has no old workers to
  // stop.
  bool IsReady(const std::string& node) const;
  size_t open() const { return open_; }
  size_t ready() const { return ready_; }

  // Called for each node in the state with which the server begins.
  void Restore(const std::string& node);
  // Gives nodes without a stream a whole lease to reconnect, since the server has admitted none for
  // a while.
  void ExtendAbsentLeases(const std::map<std::string, saved::AdmittedNode>& nodes);
  void Attach(const std::string& node, StreamId stream, bool strict_fencing,
              const v1::Version& version);
  // Called when the node's stream has ended. Its workers outlive its agent by `adoptable`, within
  // which another process may connect to adopt them.
  void Detach(const std::string& node, absl::Duration adoptable);
  void Erase(const std::string& node);
  // Called when the job has ended. Connected nodes get a lease to leave, the others are erased.
  void BeginLeaving();
  void Renew(const std::string& node);
  void SetLauncherEnd(const std::string& node, const std::string& how);
  void SetOldGeneration(const std::string& node, const GenerationId& old, int64_t first_rank = -1);
  // Keeps in words that SIGKILL does not end this worker; of several reports about it, the first.
  void AddUnkillable(const std::string& node, uint32_t local_rank, const std::string& text);

  // Returns a node whose lease has run out, if there is one.
  std::optional<std::string> NextExpired();
  MonoTime NextTimer() const;

  // Returns OK, or INTERNAL naming what does not hold.
  absl::Status CheckInvariants() const;

 private:
  MonoTime ExpiresAt(const NodeConnection& connection) const;
  void SetTimer(const std::string& node, MonoTime at);
  // Changes a connection and keeps the counts right.
  template <typename Change>
  void Update(NodeConnection* connection, Change change);

  const step::Context& context_;
  std::map<std::string, NodeConnection> all_;
  // The numbers of connections with a stream, and of those that are ready.
  size_t open_ = 0;
  size_t ready_ = 0;
  std::set<std::pair<MonoTime, std::string>> timers_;
};

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_NODE_CONNECTIONS_H_
