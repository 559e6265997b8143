// How the nodes of a job are connected, their leases, and how the job speaks to them. Pure; one
// thread.
#ifndef CADRE_RENDEZVOUS_JOB_CONNECTIONS_H_
#define CADRE_RENDEZVOUS_JOB_CONNECTIONS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/generation_id.h"
#include "base/time.h"
#include "proto/record.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/state.pb.h"
#include "proto/version.pb.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/context.h"
#include "rendezvous/step/ids.h"
#include "rendezvous/step/outbox.h"

namespace cadre::job {

// Every node of a job that has not ended has one; afterwards only those whose stream is open.
struct Connection {
  std::optional<StreamId> stream;
  MonoTime last_heard;
  // Without a stream: since when, and when the node is lost unless it comes back.
  MonoTime gone_since;
  MonoTime lost_at;
  // No node has come on it since the server began, which knows it from its state.
  bool restored = false;
  // It kills its workers before its lease ends, and not at once.
  bool strict_fencing = false;
  // Of its launcher, as the last stream's Join said.
  v1::Version version;
  // How its launcher ended, as the cluster's agent says; empty: it has said nothing.
  std::string launcher_end;
  // The node still stops workers of this generation, which is over or another server's.
  GenerationId old_generation;
  // The first rank that the node had in it; -1: that is not known any more.
  int64_t old_first_rank = -1;
  // By local rank, those of them that SIGKILL does not end, in words. Empty: it only takes its
  // time.
  std::map<uint32_t, std::string> remains;
  // When its timer fires; it may be early, then it is set again.
  MonoTime timer = MonoTime::Never();
};

// The generation that the message names; of an older agent it is taken for this server's.
GenerationId NamedBy(const v1::NodeMessage& message, const step::Context& context);

class Connections {
 public:
  explicit Connections(const step::Context& context) : context_(context) {}

  const std::map<std::string, Connection>& all() const { return all_; }
  // Null: the job does not have the node.
  const Connection* Find(const std::string& node) const;
  std::optional<StreamId> StreamOf(const std::string& node) const;
  // The node could take part in a generation.
  bool IsReady(const std::string& node) const;
  size_t open() const { return open_; }
  size_t ready() const { return ready_; }

  // The node is in the state of a server that began anew.
  void Restore(const std::string& node);
  // Nodes without a stream have a whole lease to come back: nobody could before.
  void AwaitAbsent(const std::map<std::string, saved::AdmittedNode>& nodes);
  void Attach(const std::string& node, StreamId stream, bool strict_fencing,
              const v1::Version& version);
  // Its workers outlive its agent by `adoptable`, and whoever adopts them must still come in.
  void Detach(const std::string& node, absl::Duration adoptable);
  void Erase(const std::string& node);
  // The job has ended: nodes that are connected have a lease to go, the others are erased.
  void AwaitLeaving();
  void Heard(const std::string& node);
  void SetLauncherEnd(const std::string& node, const std::string& how);
  void SetOldGeneration(const std::string& node, const GenerationId& old, int64_t first_rank = -1);
  // What was said of a worker first stays.
  void AddRemains(const std::string& node, uint32_t local_rank, const std::string& remains);

  // A node whose lease is over, if there is one.
  std::optional<std::string> NextLost();
  MonoTime NextTimer() const;

  // OK, or INTERNAL naming what does not hold.
  absl::Status CheckInvariants() const;

 private:
  MonoTime LostAt(const Connection& connection) const;
  void SetTimer(const std::string& node, MonoTime at);
  // Changes one and keeps the counts right.
  template <typename Change>
  void Update(Connection* connection, Change change);

  const step::Context& context_;
  std::map<std::string, Connection> all_;
  // With a stream; those of them that are ready.
  size_t open_ = 0;
  size_t ready_ = 0;
  std::set<std::pair<MonoTime, std::string>> timers_;
};

// Where the job puts what it decides: records of it, messages to its nodes, notes.
class Outbox {
 public:
  Outbox(const std::string& name, const state::Job& state, const Connections& connections,
         step::Outbox* out)
      : name_(name), state_(state), connections_(connections), out_(*out) {}

  void Commit(v1::Record record) {
    record.set_job(name_);
    out_.Commit(std::move(record));
  }
  void Note(absl::string_view text) { out_.Note(name_, text); }

  // A message of the current generation, to fill in.
  v1::ServerMessage Message() const { return step::MessageFor(name_, state_.generation.number()); }
  // A node that is not connected learns what it missed when it comes back.
  void SendTo(const std::string& node, v1::ServerMessage message) {
    const std::optional<StreamId> stream = connections_.StreamOf(node);
    if (stream.has_value()) out_.Send(*stream, std::move(message));
  }
  void SendToAll(const v1::ServerMessage& message) {
    for (const auto& [node, connection] : connections_.all()) {
      if (connection.stream.has_value()) out_.Send(*connection.stream, message);
    }
  }
  void Close(StreamId stream, absl::Status status) { out_.Close(stream, std::move(status)); }
  void Reject(StreamId stream, absl::StatusCode code, absl::string_view message) {
    out_.Reject(stream, name_, code, message);
  }

 private:
  const std::string& name_;
  const state::Job& state_;
  const Connections& connections_;
  step::Outbox& out_;
};

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_CONNECTIONS_H_
