// The agents of the cluster's nodes, as they are connected, and their leases. Moments are the lease
// clock's. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_CLUSTER_AGENTS_H_
#define CADRE_RENDEZVOUS_CLUSTER_AGENTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "base/time.h"
#include "proto/version.pb.h"
#include "rendezvous/step/ids.h"
#include "rendezvous/step/lease_clock.h"

namespace cadre::cluster {

struct Agent {
  std::optional<StreamId> stream;
  uint64_t incarnation = 0;
  v1::Version version;
  // Or, without a stream, since when it is gone.
  MonoTime last_heard;
  // Parts that it runs and should not, since it was taken for lost: the node gets nothing until
  // they are gone.
  std::set<uint64_t> leftovers;
  // It has not come since the server began with its node in the state.
  bool expected = false;
  // When its timer fires; it may be early, then it is set again.
  MonoTime timer = MonoTime::Never();
};

class Agents {
 public:
  explicit Agents(absl::Duration lease) : lease_(lease) {}

  // Null: the node is away.
  const Agent* Find(const std::string& node) const;
  bool IsConnected(const std::string& node) const;
  // Null: the stream is no agent's.
  const std::string* NodeOf(StreamId stream) const;
  bool AnyExpected() const { return expected_ > 0; }

  // The node is in the state; its agent may come within a lease.
  void Expect(const std::string& node, MonoTime now);
  // The stream that the agent had before it, if any, is its no more. Of the parts that it `runs`,
  // what remains stays known: the agent says it again, but only after this.
  void Connect(const std::string& node, StreamId stream, uint64_t incarnation,
               const std::set<uint64_t>& runs, MonoTime now);
  // What the agent said that it is of, with that stream.
  void SetVersion(const std::string& node, const v1::Version& version);
  // The agent has a lease to come back.
  void Disconnect(StreamId stream, MonoTime now);
  void Heard(const std::string& node, MonoTime now);
  void AddLeftover(const std::string& node, uint64_t part);
  // By node and part, what SIGKILL does not end of them: "outlives SIGKILL: ...".
  const std::map<std::string, std::map<uint64_t, std::string>>& remains() const { return remains_; }
  bool Remains(const std::string& node, uint64_t part) const;
  void AddRemains(const std::string& node, uint64_t part, const std::string& text);
  // Nothing is left of it.
  void PartEnded(const std::string& node, uint64_t part);
  void Erase(const std::string& node);

  // A node whose agent's lease is over, if there is one.
  std::optional<std::string> NextLost(const step::LeaseClock& clock);
  MonoTime NextDeadline() const;

  // Agents that are gone have their whole lease again, since none was let in.
  void AwaitAbsent(MonoTime now);

 private:
  void SetTimer(const std::string& node, MonoTime at);
  void ForgetRemainsBut(const std::string& node, const std::set<uint64_t>& runs);

  const absl::Duration lease_;
  std::map<std::string, Agent> agents_;
  size_t expected_ = 0;
  std::map<StreamId, std::string> streams_;
  std::map<std::string, std::map<uint64_t, std::string>> remains_;
  std::set<std::pair<MonoTime, std::string>> timers_;
};

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_AGENTS_H_
