// The session with the server: whether it is there, which life of its state it is, the lease, and
// since when it is away. Pure; one thread.
#ifndef CADRE_AGENT_CORE_SESSION_H_
#define CADRE_AGENT_CORE_SESSION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "agent/core/agent_config.h"
#include "agent/core/fence.h"
#include "agent/core/outbox.h"
#include "base/generation_id.h"
#include "base/time.h"
#include "proto/rendezvous.pb.h"
#include "proto/spec.pb.h"

namespace cadre::agent {

// A server welcomes a node at once, unless it cannot save that at present.
inline constexpr absl::Duration kWelcomeIsLate = absl::Seconds(5);

class Session {
 public:
  // All of them outlive the object.
  Session(const AgentConfig& config, Outbox& out);

  // A connection: `runs` is the generation of which something runs here, if any. Sends the Join.
  void Connected(MonoTime now, const GenerationId& runs, uint32_t held_port);
  // `for_good`: that server has ended with all that it knew. Another one may come in its place.
  void Lost(MonoTime now, bool for_good = false);
  // Of every event: the server is away from the first one on.
  void Count(MonoTime now);
  // True: it is another life of its state, which knows nothing of what was before.
  bool Welcomed(MonoTime now, const v1::Welcome& welcome);
  void RenewIfDue(MonoTime now, const GenerationId& runs);
  // How busy the node is, for the next heartbeat.
  void NodeUses(const v1::NodeUsage& usage) { usage_ = usage; }
  // When a server that is connected is late with its Welcome. Never() once Silent() was called.
  MonoTime silent_at() const { return silent_at_; }
  void Silent() { silent_at_ = MonoTime::Never(); }
  // Says why the server is away, unless that was said last. True: it is news.
  bool IsNewReason(const std::string& reason);

  bool connected() const { return state_ != State::kDown; }
  bool welcomed() const { return state_ == State::kWelcomed; }
  bool lost_for_good() const { return lost_for_good_; }
  // In this process's life.
  bool ever_welcomed() const { return ever_welcomed_; }
  uint64_t server_id() const { return server_id_; }
  // Whether the generation is one of the server that spoke last.
  bool Owns(const GenerationId& id) const { return id.exists() && id.server_id == server_id_; }
  // As the server holds it, once it has welcomed this node.
  const v1::JobSpec& spec() const { return spec_; }
  absl::Duration StopGrace() const;
  // Unset while welcomed.
  const std::optional<MonoTime>& away_since() const { return away_since_; }
  const std::string& away_reason() const { return away_reason_; }  // last one that was said
  MonoTime renew_at() const { return renew_at_; }
  Fence& fence() { return fence_; }
  const Fence& fence() const { return fence_; }
  // In words.
  std::string Server() const;

 private:
  enum class State { kDown, kConnected, kWelcomed };

  const AgentConfig& config_;
  Outbox& out_;
  State state_ = State::kDown;
  bool lost_for_good_ = false;
  bool ever_welcomed_ = false;
  uint64_t server_id_ = 0;
  absl::Duration lease_ = kDefaultLease;
  v1::JobSpec spec_;
  MonoTime renew_at_ = MonoTime::Never();
  std::optional<v1::NodeUsage> usage_;  // that no heartbeat has told yet
  MonoTime silent_at_ = MonoTime::Never();
  std::optional<MonoTime> away_since_;
  std::string away_reason_;
  Fence fence_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_SESSION_H_
