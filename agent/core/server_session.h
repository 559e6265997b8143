// The agent's session with its server, in three parts that agent_core.cc uses side by side:
//
//   ServerSession      whether the server is connected, the id of its state (server_id), the lease,
//                      and since when the server is away
//   Fence              strict fencing: until when the workers may run without the server's answer
//   PendingStoreCalls  the workers' store operations that the server has not answered yet
//
// Pure; one thread.
#ifndef CADRE_AGENT_CORE_SERVER_SESSION_H_
#define CADRE_AGENT_CORE_SERVER_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/core/agent_core.h"
#include "agent/core/command_buffer.h"
#include "base/generation_id.h"
#include "base/time.h"
#include "proto/rendezvous.pb.h"
#include "proto/spec.pb.h"
#include "proto/store.pb.h"

namespace cadre::agent {

// The lease until the server's Welcome names one.
inline constexpr absl::Duration kDefaultLease = absl::Seconds(10);
// A server welcomes a node at once, unless it cannot save its state at present.
inline constexpr absl::Duration kWelcomeIsLate = absl::Seconds(5);

// The fence decides, with strict fencing, by the server's answers until when the workers may run. A
// node that replaces this one waits for the end of this node's lease, so the workers must be dead
// before that, by a clock that counts the machine's sleep.
class Fence {
 public:
  // Adopted workers are killed at `held_until` unless the server answers.
  Fence(bool strict, MonoTime held_until) : strict_(strict), held_until_(held_until) {}

  // A new connection: answers to messages of earlier connections cannot arrive any more.
  void OnConnected(MonoTime now);
  void OnWelcome(absl::Duration lease);
  // Returns the number for the renewal sent now; 0 if no answer is needed.
  uint64_t NumberOfRenewal(MonoTime now);
  // Returns false if no renewal with this number awaits an answer.
  bool OnAnswer(uint64_t number);

  // Accounts for the machine's sleep, during which the server's clock went on.
  void OnSleep(absl::Duration duration);

  // When the workers are killed if no answer comes; Never() without strict fencing.
  MonoTime at() const;
  // How long after a message was sent its answer may come before the workers are killed.
  absl::Duration timeout() const;

 private:
  const bool strict_;
  MonoTime held_until_;
  absl::Duration lease_ = kDefaultLease;
  MonoTime join_sent_at_;
  // When the message was sent that the server has answered last.
  MonoTime confirmed_at_;
  uint64_t renewals_ = 0;
  std::map<uint64_t, MonoTime> unanswered_;  // number to time sent
};

class ServerSession {
 public:
  // The arguments must outlive the object.
  ServerSession(const AgentConfig& config, CommandBuffer& out);

  // Called on a new connection; sends the Join. `running`: the generation that has processes here,
  // if any.
  void OnConnected(MonoTime now, const GenerationId& running, uint32_t held_port);
  // `for_good`: the server has ended and its state is lost. Another server may take its place.
  void OnDisconnected(MonoTime now, bool for_good = false);
  // Called on every event, so that the time away counts from the first event without a Welcome.
  void NoteIfAway(MonoTime now);
  // Returns true if the server lost its state and does not know this node.
  bool OnWelcome(MonoTime now, const v1::Welcome& welcome);
  void RenewIfDue(MonoTime now, const GenerationId& running);
  // Stores the node's load for the next heartbeat.
  void SetUsage(const v1::NodeUsage& usage) { usage_ = usage; }
  // When the Welcome of a connected server is late; Never() once LateWelcomeReported() was called.
  MonoTime welcome_late_at() const { return welcome_late_at_; }
  void LateWelcomeReported() { welcome_late_at_ = MonoTime::Never(); }
  // Records why the server is away. Returns true if the reason is new.
  bool IsNewReason(const std::string& reason);

  bool connected() const { return state_ != State::kDown; }
  bool welcomed() const { return state_ == State::kWelcomed; }
  bool lost_for_good() const { return lost_for_good_; }
  // Whether the server has welcomed this process before.
  bool ever_welcomed() const { return ever_welcomed_; }
  uint64_t server_id() const { return server_id_; }
  // Whether the generation belongs to the server that welcomed this node last.
  bool Owns(const GenerationId& id) const { return id.exists() && id.server_id == server_id_; }
  // The spec as the server holds it, once it has welcomed this node.
  const v1::JobSpec& spec() const { return spec_; }
  absl::Duration StopGrace() const;
  // Unset while welcomed.
  const std::optional<MonoTime>& away_since() const { return away_since_; }
  const std::string& away_reason() const { return away_reason_; }  // last one recorded
  MonoTime renew_at() const { return renew_at_; }
  Fence& fence() { return fence_; }
  const Fence& fence() const { return fence_; }
  // The server's name for messages.
  std::string ServerName() const;

 private:
  enum class State { kDown, kConnected, kWelcomed };

  const AgentConfig& config_;
  CommandBuffer& out_;
  State state_ = State::kDown;
  bool lost_for_good_ = false;
  bool ever_welcomed_ = false;
  uint64_t server_id_ = 0;
  absl::Duration lease_ = kDefaultLease;
  v1::JobSpec spec_;
  MonoTime renew_at_ = MonoTime::Never();
  std::optional<v1::NodeUsage> usage_;  // not yet sent with a heartbeat
  MonoTime welcome_late_at_ = MonoTime::Never();
  std::optional<MonoTime> away_since_;
  std::string away_reason_;
  Fence fence_;
};

// Limits on the store operations that may be pending and on their total size. After a reconnection
// all of them go to the link at once, which has room for them (LinkQueue).
inline constexpr size_t kMaxPendingStoreCalls = 65536;
inline constexpr size_t kMaxPendingStoreBytes = 64 << 20;

class PendingStoreCalls {
 public:
  // Returns false if the same request is pending already, so that it need not be sent again.
  // RESOURCE_EXHAUSTED: too many are pending.
  absl::StatusOr<bool> Add(const v1::StoreRequest& request);
  // Removes the request that `reply` answers; returns false if there is none.
  bool OnReply(const v1::StoreReply& reply);
  // Removes all requests and returns a reply with this status for each.
  std::vector<v1::StoreReply> FailAll(const absl::Status& status);
  // Ordered by (client, request_id), the order in which each client asked.
  std::vector<v1::StoreRequest> All() const;

 private:
  using Key = std::pair<uint64_t, uint64_t>;  // client, request_id
  std::map<Key, v1::StoreRequest> waiting_;
  size_t bytes_ = 0;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_SERVER_SESSION_H_
