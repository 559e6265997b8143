#include "rendezvous/job/connections.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/duration.h"

namespace cadre::job {
namespace {

bool IsReadyConnection(const Connection& connection) {
  return connection.stream.has_value() && !connection.old_generation.exists();
}

}  // namespace

GenerationId NamedBy(const v1::NodeMessage& message, const step::Context& context) {
  const GenerationId named = GenerationOf(message);
  return named.server_id != 0 ? named : GenerationId{context.config.server_id, named.number};
}

template <typename Change>
void Connections::Update(Connection* connection, Change change) {
  open_ -= connection->stream.has_value();
  ready_ -= IsReadyConnection(*connection);
  change(connection);
  open_ += connection->stream.has_value();
  ready_ += IsReadyConnection(*connection);
}

const Connection* Connections::Find(const std::string& node) const {
  const auto found = all_.find(node);
  return found == all_.end() ? nullptr : &found->second;
}

std::optional<StreamId> Connections::StreamOf(const std::string& node) const {
  const Connection* connection = Find(node);
  return connection == nullptr ? std::nullopt : connection->stream;
}

bool Connections::IsReady(const std::string& node) const {
  const Connection* connection = Find(node);
  return connection != nullptr && IsReadyConnection(*connection);
}

void Connections::Restore(const std::string& node) {
  Connection& connection = all_[node];
  connection.last_heard = context_.clock.lease_now();
  connection.restored = true;
}

void Connections::AwaitAbsent(const std::map<std::string, saved::AdmittedNode>& nodes) {
  for (auto& [node, connection] : all_) {
    if (connection.stream.has_value()) continue;
    connection.gone_since = context_.clock.lease_now();
    connection.lost_at =
        context_.clock.lease_now() +
        std::max(context_.config.lease, FromProto(nodes.at(node).node().adopt_timeout()));
    SetTimer(node, connection.lost_at);
  }
}

void Connections::Attach(const std::string& node, StreamId stream, bool strict_fencing,
                         const v1::Version& version) {
  Connection& connection = all_[node];
  Update(&connection, [&](Connection* changed) { changed->stream = stream; });
  connection.last_heard = context_.clock.lease_now();
  connection.restored = false;
  connection.strict_fencing = strict_fencing;
  connection.version = version;
  connection.launcher_end.clear();
  SetTimer(node, LostAt(connection));
}

void Connections::Detach(const std::string& node, absl::Duration adoptable) {
  Connection& connection = all_.at(node);
  Update(&connection, [](Connection* changed) { changed->stream.reset(); });
  connection.gone_since = context_.clock.lease_now();
  connection.lost_at = connection.gone_since + context_.config.reconnect_grace + adoptable;
  if (connection.strict_fencing) {
    // Its workers may run until shortly before the lease ends.
    connection.lost_at =
        std::max(connection.lost_at, connection.last_heard + context_.config.lease);
  }
  SetTimer(node, connection.lost_at);
}

void Connections::Erase(const std::string& node) {
  Update(&all_.at(node), [](Connection* changed) { changed->stream.reset(); });
  SetTimer(node, MonoTime::Never());
  all_.erase(node);
}

void Connections::AwaitLeaving() {
  std::vector<std::string> gone;
  for (auto& [node, connection] : all_) {
    connection.last_heard = context_.clock.lease_now();
    if (!connection.stream.has_value()) gone.push_back(node);
  }
  for (const std::string& node : gone) Erase(node);
}

void Connections::Heard(const std::string& node) {
  all_.at(node).last_heard = context_.clock.lease_now();
}

void Connections::SetLauncherEnd(const std::string& node, const std::string& how) {
  all_.at(node).launcher_end = how;
}

void Connections::SetOldGeneration(const std::string& node, const GenerationId& old,
                                   int64_t first_rank) {
  Connection& connection = all_.at(node);
  // After a reconnection what was known of it holds.
  if (old == connection.old_generation) return;
  Update(&connection, [&](Connection* changed) { changed->old_generation = old; });
  connection.old_first_rank = first_rank;
  connection.remains.clear();
}

void Connections::AddRemains(const std::string& node, uint32_t local_rank,
                             const std::string& remains) {
  all_.at(node).remains.emplace(local_rank, remains);
}

MonoTime Connections::LostAt(const Connection& connection) const {
  const bool absent = !connection.stream.has_value();
  return context_.clock.OverAt(
      absent ? connection.lost_at : connection.last_heard + context_.config.lease, absent);
}

void Connections::SetTimer(const std::string& node, MonoTime at) {
  Connection& connection = all_.at(node);
  if (connection.timer == at) return;
  if (connection.timer != MonoTime::Never()) timers_.erase({connection.timer, node});
  if (at != MonoTime::Never()) timers_.insert({at, node});
  connection.timer = at;
}

std::optional<std::string> Connections::NextLost() {
  while (NextTimer() <= context_.clock.lease_now()) {
    const std::string node = timers_.begin()->second;
    const MonoTime lost_at = LostAt(all_.at(node));
    if (lost_at <= context_.clock.lease_now()) return node;
    // A renewal only moves last_heard, and delays of the host are not foreseen.
    SetTimer(node, lost_at);
  }
  return std::nullopt;
}

MonoTime Connections::NextTimer() const {
  return timers_.empty() ? MonoTime::Never() : timers_.begin()->first;
}

absl::Status Connections::CheckInvariants() const {
  size_t open = 0, ready = 0;
  for (const auto& [node, connection] : all_) {
    open += connection.stream.has_value();
    ready += IsReadyConnection(connection);
    if (timers_.count({connection.timer, node}) != 1) {
      return absl::InternalError(absl::StrCat("node ", node, " never expires"));
    }
  }
  if (timers_.size() != all_.size()) return absl::InternalError("nodes and timers disagree");
  if (open != open_ || ready != ready_) return absl::InternalError("miscounted streams");
  return absl::OkStatus();
}

}  // namespace cadre::job
