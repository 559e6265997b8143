// Calls of this node's workers about their place: Hello, and, where the job recovers in place,
// AwaitEnd and Rejoin (rpc/worker_protocol.h).
#ifndef CADRE_AGENT_LOCAL_WORKER_CALLS_H_
#define CADRE_AGENT_LOCAL_WORKER_CALLS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/core/agent_core.h"
#include "proto/rendezvous.pb.h"
#include "rpc/worker_protocol.h"

namespace cadre::agent {

// One thread.
class WorkerCalls {
 public:
  struct Options {
    std::string job;
    // Address of this node as others reach it.
    std::string address;
    // Sends a reply on a connection.
    std::function<void(uint64_t connection, const rpc::WorkerReply&)> send;
    // Takes WorkerMayRejoin and WorkerWaits.
    std::function<void(AgentEvent)> on_event;
  };

  explicit WorkerCalls(Options options) : options_(std::move(options)) {}

  // The generation that runs here from now on. Kept workers that wait are told their place.
  void Begin(uint64_t generation, const v1::Assign& assign, bool in_place,
             const std::set<uint32_t>& kept);
  // Whether a process that is started to stand by would wait: workers of the generation have asked
  // for their place as the worker runtime does and, with recovery in place, take part in it.
  bool WouldStandBy() const { return would_stand_by_ && !ended_; }
  // It is over. Kept workers are told so; the others are told, if they ask, that they are not.
  void End(const std::set<uint32_t>& kept, const std::string& reason);

  void On(uint64_t connection, uint64_t id, const rpc::Hello& call);
  void On(uint64_t connection, uint64_t id, const rpc::AwaitEnd& call);
  void On(uint64_t connection, uint64_t id, const rpc::Rejoin& call);
  // Nobody waits there any more.
  void Forget(uint64_t connection);

 private:
  enum class Kind { kAwaitEnd, kRejoin };
  using Key = std::pair<Kind, uint32_t>;  // with its local rank
  struct Waiting {
    uint64_t connection = 0;
    uint64_t id = 0;
    uint64_t generation = 0;
  };

  // The caller's local rank, or what is wrong with it.
  absl::StatusOr<uint32_t> LocalRank(const rpc::Caller& from) const;
  // Likewise, for AwaitEnd and Rejoin.
  absl::StatusOr<uint32_t> InPlaceRank(const rpc::Caller& from) const;
  rpc::Place PlaceOf(uint32_t local_rank) const;
  // Takes the place of an earlier call of the same worker.
  void Wait(Key key, uint64_t connection, uint64_t id);
  void Refuse(const Waiting& call, const absl::Status& status);

  const Options options_;
  uint64_t generation_ = 0;
  v1::Assign assign_;
  bool in_place_ = false;
  bool would_stand_by_ = false;
  bool ended_ = false;
  std::string reason_;
  std::set<uint32_t> kept_;
  std::map<Key, Waiting> waiting_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_LOCAL_WORKER_CALLS_H_
