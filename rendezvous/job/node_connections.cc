#include "rendezvous/job/node_connections.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/duration.h"

namespace cadre::job {
namespace {

bool IsReadyConnection(const NodeConnection& connection) {
  return connection.stream.has_value() && !connection.old_generation.exists();
}

}  // namespace

GenerationId NamedBy(const v1::NodeMessage& message, const step::Context& context) {
  const GenerationId named = GenerationOf(message);
  return named.server_id != 0 ? named : GenerationId{context.config.server_id, named.number};
}

template <typename Change>
void NodeConnections::Update(NodeConnection* connection, Change change) {
  open_ -= connection->stream.has_value();
  ready_ -= IsReadyConnection(*connection);
  change(connection);
  open_ += connection->stream.has_value();
  ready_ += IsReadyConnection(*connection);
  CADRE_CHECK(ready_ <= open_ && open_ <= all_.size(), ready_, " ready of ", open_, " open of ",
              all_.size());
}

const NodeConnection* NodeConnections::Find(const std::string& node) const {
  const auto found = all_.find(node);
  return found == all_.end() ? nullptr : &found->second;
}

std::optional<StreamId> NodeConnections::StreamOf(const std::string& node) const {
  const NodeConnection* connection = Find(node);
  return connection == nullptr ? std::nullopt : connection->stream;
}

bool NodeConnections::IsReady(const std::string& node) const {
  const NodeConnection* connection = Find(node);
  return connection != nullptr && IsReadyConnection(*connection);
}

void NodeConnections::Restore(const std::string& node) {
  NodeConnection& connection = all_[node];
  connection.last_heard = context_.clock.lease_now();
  connection.restored = true;
}

void NodeConnections::ExtendAbsentLeases(const std::map<std::string, saved::AdmittedNode>& nodes) {
  for (auto& [node, connection] : all_) {
    if (connection.stream.has_value()) continue;
    connection.gone_since = context_.clock.lease_now();
    connection.lost_at =
        context_.clock.lease_now() +
        std::max(context_.config.lease, FromProto(nodes.at(node).node().adopt_timeout()));
    SetTimer(node, connection.lost_at);
  }
}

void NodeConnections::Attach(const std::string& node, StreamId stream, bool strict_fencing,
                             const v1::Version& version) {
  NodeConnection& connection = all_[node];
  Update(&connection, [&](NodeConnection* changed) { changed->stream = stream; });
  connection.last_heard = context_.clock.lease_now();
  connection.restored = false;
  connection.strict_fencing = strict_fencing;
  connection.version = version;
  connection.launcher_end.clear();
  SetTimer(node, ExpiresAt(connection));
}

void NodeConnections::Detach(const std::string& node, absl::Duration adoptable) {
  NodeConnection& connection = all_.at(node);
  CADRE_CHECK(connection.stream.has_value(), "node ", node);
  Update(&connection, [](NodeConnection* changed) { changed->stream.reset(); });
  connection.gone_since = context_.clock.lease_now();
  connection.lost_at = connection.gone_since + context_.config.reconnect_grace + adoptable;
  if (connection.strict_fencing) {
    // Its workers may run until shortly before the lease ends.
    connection.lost_at =
        std::max(connection.lost_at, connection.last_heard + context_.config.lease);
  }
  SetTimer(node, connection.lost_at);
}

void NodeConnections::Erase(const std::string& node) {
  Update(&all_.at(node), [](NodeConnection* changed) { changed->stream.reset(); });
  SetTimer(node, MonoTime::Never());
  all_.erase(node);
}

void NodeConnections::BeginLeaving() {
  std::vector<std::string> gone;
  for (auto& [node, connection] : all_) {
    connection.last_heard = context_.clock.lease_now();
    if (!connection.stream.has_value()) gone.push_back(node);
  }
  for (const std::string& node : gone) Erase(node);
}

void NodeConnections::Renew(const std::string& node) {
  all_.at(node).last_heard = context_.clock.lease_now();
}

void NodeConnections::SetLauncherEnd(const std::string& node, const std::string& how) {
  all_.at(node).launcher_end = how;
}

void NodeConnections::SetOldGeneration(const std::string& node, const GenerationId& old,
                                       int64_t first_rank) {
  NodeConnection& connection = all_.at(node);
  // After a reconnection what was known of it still holds.
  if (old == connection.old_generation) return;
  Update(&connection, [&](NodeConnection* changed) { changed->old_generation = old; });
  connection.old_first_rank = first_rank;
  connection.unkillable.clear();
}

void NodeConnections::AddUnkillable(const std::string& node, uint32_t local_rank,
                                    const std::string& text) {
  all_.at(node).unkillable.emplace(local_rank, text);
}

MonoTime NodeConnections::ExpiresAt(const NodeConnection& connection) const {
  const bool absent = !connection.stream.has_value();
  return context_.clock.ExpiresAt(
      absent ? connection.lost_at : connection.last_heard + context_.config.lease, absent);
}

void NodeConnections::SetTimer(const std::string& node, MonoTime at) {
  NodeConnection& connection = all_.at(node);
  if (connection.timer == at) return;
  if (connection.timer != MonoTime::Never()) timers_.erase({connection.timer, node});
  if (at != MonoTime::Never()) timers_.insert({at, node});
  connection.timer = at;
}

std::optional<std::string> NodeConnections::NextExpired() {
  while (NextTimer() <= context_.clock.lease_now()) {
    const std::string node = timers_.begin()->second;
    const MonoTime lost_at = ExpiresAt(all_.at(node));
    if (lost_at <= context_.clock.lease_now()) return node;
    // The timer is reset lazily: a renewal only moves last_heard, and delays of the host cannot be
    // foreseen.
    SetTimer(node, lost_at);
  }
  return std::nullopt;
}

MonoTime NodeConnections::NextTimer() const {
  return timers_.empty() ? MonoTime::Never() : timers_.begin()->first;
}

absl::Status NodeConnections::CheckInvariants() const {
  size_t open = 0, ready = 0;
  for (const auto& [node, connection] : all_) {
    open += connection.stream.has_value();
    ready += IsReadyConnection(connection);
    if (timers_.count({connection.timer, node}) != 1) {
      return absl::InternalError(absl::StrCat("node ", node, " has no timer"));
    }
  }
  if (timers_.size() != all_.size()) return absl::InternalError("nodes and timers disagree");
  if (open != open_ || ready != ready_) return absl::InternalError("miscounted streams");
  return absl::OkStatus();
}

}  // namespace cadre::job
