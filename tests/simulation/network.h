// Streams between nodes and the server, as TCP and gRPC give them: what arrives of one stream comes
// in order and once, but late, and the end of it may never come; a stream ends at each side at its
// own time. So drops, repeats and changes of order happen where they happen in truth: at the ends
// of streams, between an old stream and the next, and in calls outside streams (outside_client.h).
// One thread.
#ifndef CADRE_TESTS_SIMULATION_NETWORK_H_
#define CADRE_TESTS_SIMULATION_NETWORK_H_

#include <cstdint>
#include <deque>
#include <map>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "proto/rendezvous.pb.h"
#include "tests/simulation/plan.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

// Numbers grow and are never used again.
using ConnectionId = uint64_t;

class StreamClient {
 public:
  virtual ~StreamClient() = default;
  virtual void OnUp(ConnectionId id) = 0;
  virtual void OnMessage(ConnectionId id, const v1::ServerMessage& message) = 0;
  // It could not be opened, or it is over.
  virtual void OnDown(ConnectionId id, const absl::Status& status) = 0;
};

class StreamServer {
 public:
  virtual ~StreamServer() = default;
  // False: nobody listens. A server that stands still listens, and answers later.
  virtual bool Listens() const = 0;
  virtual bool StandsStill() const = 0;
  virtual void OnOpened(ConnectionId id, int node) = 0;
  virtual void OnMessage(ConnectionId id, const v1::NodeMessage& message) = 0;
  virtual void OnClosed(ConnectionId id) = 0;
};

class Network {
 public:
  Network(World& world, const Plan& plan);
  void set_server(StreamServer* server) { server_ = server; }

  ConnectionId Connect(int node, StreamClient* client);
  void SendUp(ConnectionId id, v1::NodeMessage message);
  void SendDown(ConnectionId id, v1::ServerMessage message);
  // The node's end is over, what it has sent still goes out. The client hears nothing any more.
  void CloseByClient(ConnectionId id);
  // Likewise the server's; its OnClosed follows.
  void CloseByServer(ConnectionId id, absl::Status status);
  // All ends of a machine or process that has died.
  void DropClient(int node, bool machine_is_gone);
  void DropServer();

  // --- faults ---
  void Reset(int node);
  void Cut(int node, bool up, bool down, absl::Duration lasts);
  void Clog(int node, absl::Duration lasts);
  // No fault lasts any longer.
  void Heal();

  // How long a message takes that goes now.
  absl::Duration Delay();

 private:
  // What travels: a message, or the end of the stream.
  template <typename Message>
  struct Pipe {
    struct Item {
      MonoTime due;
      std::variant<Message, absl::Status> what;
    };
    std::deque<Item> items;
    MonoTime last_due;
    bool pumping = false;
  };
  struct Connection {
    int node = 0;
    StreamClient* client = nullptr;  // null: that end is over
    bool server = false;             // the server's end is open
    bool opening = true;
    MonoTime give_up;
    Pipe<v1::NodeMessage> up;
    Pipe<v1::ServerMessage> down;
  };
  enum Direction { kUp, kDown };

  Connection* Find(ConnectionId id);
  void TryOpen(ConnectionId id);
  void FailOpening(ConnectionId id, const absl::Status& status);
  MonoTime BlockedUntil(int node, Direction direction) const;
  template <typename Message>
  void Put(ConnectionId id, Pipe<Message>& pipe, std::variant<Message, absl::Status> what);
  void PumpUp(ConnectionId id);
  void PumpDown(ConnectionId id);
  void EndClient(ConnectionId id, const absl::Status& status);
  void EndServer(ConnectionId id);
  // A side that hears no answer to its pings gives the stream up.
  void WatchKeepalive(int node);
  template <typename Message>
  void LoseTail(Pipe<Message>& pipe);
  void ForgetIfOver(ConnectionId id);

  World& world_;
  const Plan& plan_;
  StreamServer* server_ = nullptr;
  ConnectionId last_ = 0;
  std::map<ConnectionId, Connection> connections_;
  // By node and direction.
  std::vector<MonoTime> blocked_[2];
};

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_NETWORK_H_
