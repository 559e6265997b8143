#include "tests/simulation/network.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/channels.h"

namespace cadre::simulation {
namespace {

// The value that agent/link uses.
constexpr absl::Duration kOpenTimeout = absl::Seconds(15);
constexpr absl::Duration kRetransmitMin = absl::Milliseconds(200);
constexpr absl::Duration kOpenRetry = absl::Milliseconds(50);

absl::Status Broken() { return absl::UnavailableError("the stream is broken"); }

}  // namespace

Network::Network(World& world, const Plan& plan) : world_(world), plan_(plan) {
  for (auto& direction : blocked_) direction.resize(plan.nodes.size());
}

absl::Duration Network::Delay() {
  absl::Duration delay = world_.random.Between(plan_.odds.delay_min, plan_.odds.delay_max);
  if (world_.calm) return delay;
  absl::Duration retransmit = kRetransmitMin;
  while (retransmit < absl::Seconds(4) && world_.random.Percent(plan_.odds.retransmit)) {
    delay += retransmit;
    retransmit *= 2;
  }
  return delay;
}

Network::Connection* Network::Find(ConnectionId id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : &found->second;
}

MonoTime Network::BlockedUntil(int node, Direction direction) const {
  return blocked_[direction][node];
}

ConnectionId Network::Connect(int node, StreamClient* client) {
  const ConnectionId id = ++last_;
  Connection& connection = connections_[id];
  connection.node = node;
  connection.client = client;
  connection.give_up = world_.now() + kOpenTimeout;
  world_.schedule.In(Delay() + Delay(), [this, id] { TryOpen(id); });
  return id;
}

void Network::TryOpen(ConnectionId id) {
  Connection* connection = Find(id);
  if (connection == nullptr || connection->client == nullptr) return ForgetIfOver(id);
  const MonoTime blocked =
      std::max(BlockedUntil(connection->node, kUp), BlockedUntil(connection->node, kDown));
  const bool waits = blocked > world_.now() || (server_->Listens() && server_->StandsStill());
  if (waits && world_.now() >= connection->give_up) {
    return FailOpening(id, absl::DeadlineExceededError("no answer from the server"));
  }
  if (waits) {
    const MonoTime again = std::max(blocked, world_.now() + kOpenRetry);
    return world_.schedule.At(std::min(again, connection->give_up), [this, id] { TryOpen(id); });
  }
  if (!server_->Listens()) return FailOpening(id, absl::UnavailableError("connection refused"));
  connection->opening = false;
  connection->server = true;
  server_->OnOpened(id, connection->node);
  connection->client->OnUp(id);
}

void Network::FailOpening(ConnectionId id, const absl::Status& status) {
  StreamClient* client = Find(id)->client;
  connections_.erase(id);
  client->OnDown(id, status);
}

template <typename Message>
void Network::Put(ConnectionId id, Pipe<Message>& pipe, std::variant<Message, absl::Status> what) {
  pipe.last_due = std::max(pipe.last_due, world_.now() + Delay());
  pipe.items.push_back({pipe.last_due, std::move(what)});
  if (pipe.pumping) return;
  pipe.pumping = true;
  if constexpr (std::is_same_v<Message, v1::NodeMessage>) {
    world_.schedule.At(pipe.last_due, [this, id] { PumpUp(id); });
  } else {
    world_.schedule.At(pipe.last_due, [this, id] { PumpDown(id); });
  }
}

void Network::SendToServer(ConnectionId id, v1::NodeMessage message) {
  Connection* connection = Find(id);
  if (connection == nullptr || connection->opening || connection->client == nullptr) return;
  Put(id, connection->up, {std::move(message)});
}

void Network::SendDown(ConnectionId id, v1::ServerMessage message) {
  Connection* connection = Find(id);
  if (connection == nullptr || !connection->server) return;
  Put(id, connection->down, {std::move(message)});
}

void Network::PumpUp(ConnectionId id) {
  for (;;) {
    Connection* connection = Find(id);
    if (connection == nullptr) return;
    Pipe<v1::NodeMessage>& pipe = connection->up;
    pipe.pumping = !pipe.items.empty();
    if (!pipe.pumping) return;
    const MonoTime at = std::max(pipe.items.front().due, BlockedUntil(connection->node, kUp));
    if (at > world_.now()) return world_.schedule.At(at, [this, id] { PumpUp(id); });
    const auto item = std::move(pipe.items.front());
    pipe.items.pop_front();
    if (!connection->server) continue;
    if (const auto* message = std::get_if<v1::NodeMessage>(&item.what)) {
      server_->OnMessage(id, *message);
    } else {
      EndServer(id);
    }
  }
}

void Network::PumpDown(ConnectionId id) {
  for (;;) {
    Connection* connection = Find(id);
    if (connection == nullptr) return;
    Pipe<v1::ServerMessage>& pipe = connection->down;
    pipe.pumping = !pipe.items.empty();
    if (!pipe.pumping) return;
    const MonoTime at = std::max(pipe.items.front().due, BlockedUntil(connection->node, kDown));
    if (at > world_.now()) return world_.schedule.At(at, [this, id] { PumpDown(id); });
    const auto item = std::move(pipe.items.front());
    pipe.items.pop_front();
    if (connection->client == nullptr) continue;
    if (const auto* message = std::get_if<v1::ServerMessage>(&item.what)) {
      connection->client->OnMessage(id, *message);
    } else {
      EndClient(id, std::get<absl::Status>(item.what));
    }
  }
}

void Network::CloseByClient(ConnectionId id) {
  Connection* connection = Find(id);
  if (connection == nullptr || connection->client == nullptr) return;
  connection->client = nullptr;
  if (connection->opening) return;
  Put(id, connection->up, {Broken()});
}

void Network::CloseByServer(ConnectionId id, absl::Status status) {
  Connection* connection = Find(id);
  if (connection == nullptr || !connection->server) return;
  Put(id, connection->down, {status.ok() ? Broken() : std::move(status)});
  // gRPC reports the end once the status has been written.
  world_.schedule.In(Delay(), [this, id] { EndServer(id); });
}

void Network::EndClient(ConnectionId id, const absl::Status& status) {
  Connection* connection = Find(id);
  if (connection == nullptr || connection->client == nullptr) return;
  StreamClient* client = connection->client;
  connection->client = nullptr;
  if (connection->server) Put(id, connection->up, {Broken()});
  client->OnDown(id, status);
  ForgetIfOver(id);
}

void Network::EndServer(ConnectionId id) {
  Connection* connection = Find(id);
  if (connection == nullptr || !connection->server) return;
  connection->server = false;
  if (connection->client != nullptr) Put(id, connection->down, {Broken()});
  server_->OnClosed(id);
  ForgetIfOver(id);
}

void Network::ForgetIfOver(ConnectionId id) {
  const Connection* connection = Find(id);
  if (connection != nullptr && connection->client == nullptr && !connection->server) {
    connections_.erase(id);
  }
}

void Network::DropClient(int node, bool machine_is_gone) {
  for (auto& [id, connection] : connections_) {
    if (connection.node != node || connection.client == nullptr) continue;
    connection.client = nullptr;
    if (connection.opening) continue;
    LoseTail(connection.up);
    // The kernel closes the connections of a process that ended; a machine that is gone closes
    // nothing.
    if (!machine_is_gone) {
      Put(id, connection.up, {Broken()});
    } else {
      connection.up.items.clear();
      world_.schedule.In(rpc::kKeepaliveTime + rpc::kKeepaliveTimeout,
                         [this, id = id] { EndServer(id); });
    }
  }
}

void Network::DropServer() {
  for (auto& [id, connection] : connections_) {
    if (!connection.server) continue;
    connection.server = false;
    LoseTail(connection.down);
    if (connection.client != nullptr) Put(id, connection.down, {Broken()});
  }
  for (auto it = connections_.begin(); it != connections_.end();) {
    const Connection& connection = it->second;
    const bool over = connection.client == nullptr && !connection.opening;
    it = over ? connections_.erase(it) : std::next(it);
  }
}

template <typename Message>
void Network::LoseTail(Pipe<Message>& pipe) {
  const int kept = world_.random.Below(static_cast<int>(pipe.items.size()) + 1);
  pipe.items.resize(kept);
}

void Network::Reset(int node) {
  std::vector<ConnectionId> hit;
  for (const auto& [id, connection] : connections_) {
    if (connection.node == node && !connection.opening) hit.push_back(id);
  }
  for (const ConnectionId id : hit) {
    Connection* connection = Find(id);
    LoseTail(connection->up);
    LoseTail(connection->down);
    // Each side detects the break at its own time: at once, or by its keepalive pings.
    for (const bool client : {true, false}) {
      const absl::Duration heard =
          world_.random.Percent(70)
              ? Delay()
              : world_.random.Between(absl::ZeroDuration(),
                                      rpc::kKeepaliveTime + rpc::kKeepaliveTimeout);
      world_.schedule.In(heard, [this, id, client] {
        if (client) return EndClient(id, Broken());
        EndServer(id);
      });
    }
    // No message gets through meanwhile.
    connection->up.last_due = connection->down.last_due =
        world_.now() + 2 * (rpc::kKeepaliveTime + rpc::kKeepaliveTimeout);
  }
}

void Network::Cut(int node, bool up, bool down, absl::Duration lasts) {
  if (up) blocked_[kUp][node] = std::max(blocked_[kUp][node], world_.now() + lasts);
  if (down) blocked_[kDown][node] = std::max(blocked_[kDown][node], world_.now() + lasts);
  WatchKeepalive(node);
}

void Network::Clog(int node, absl::Duration lasts) { Cut(node, true, true, lasts); }

void Network::WatchKeepalive(int node) {
  for (const auto& [id, connection] : connections_) {
    if (connection.node != node || connection.opening) continue;
    for (const bool client : {true, false}) {
      const absl::Duration timeout = world_.random.Between(
          rpc::kKeepaliveTimeout, rpc::kKeepaliveTime + rpc::kKeepaliveTimeout);
      world_.schedule.In(timeout, [this, id = id, node, client] {
        // Pings and their answers need both directions.
        const MonoTime blocked = std::max(BlockedUntil(node, kUp), BlockedUntil(node, kDown));
        if (blocked <= world_.now()) return;
        if (client) return EndClient(id, absl::UnavailableError("keepalive timeout"));
        EndServer(id);
      });
    }
  }
}

void Network::Heal() {
  for (auto& direction : blocked_) std::fill(direction.begin(), direction.end(), world_.now());
  for (auto& [id, connection] : connections_) {
    if (!connection.up.items.empty()) {
      world_.schedule.In(Delay(), [this, id = id] { PumpUp(id); });
    }
    if (!connection.down.items.empty()) {
      world_.schedule.In(Delay(), [this, id = id] { PumpDown(id); });
    }
  }
}

}  // namespace cadre::simulation
