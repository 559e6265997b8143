// Streams between nodes and the server with the guarantees of TCP and gRPC: messages of one stream
// arrive in order and once, but late, and the end of the stream may never arrive; each side sees
// the end at its own time. So loss, repetition and reordering happen where they really happen: at
// the ends of streams, between an old stream and the next, and in calls outside streams
// (OutsideClient in server.h). One thread.
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

// Ids increase and are never reused.
using ConnectionId = uint64_t;

class StreamClient {
 public:
  virtual ~StreamClient() = default;
  virtual void OnUp(ConnectionId id) = 0;
  virtual void OnMessage(ConnectionId id, const v1::ServerMessage& message) = 0;
  // The stream could not be opened, or it has ended.
  virtual void OnDown(ConnectionId id, const absl::Status& status) = 0;
};

class StreamServer {
 public:
  virtual ~StreamServer() = default;
  // Returns false if connections are refused. A server that stands still accepts them and answers
  // later.
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
  void SendToServer(ConnectionId id, v1::NodeMessage message);
  void SendDown(ConnectionId id, v1::ServerMessage message);
  // Closes the node's end; messages that it has sent are still delivered. The client gets no more
  // calls.
  void CloseByClient(ConnectionId id);
  // Closes the server's end likewise; its OnClosed follows.
  void CloseByServer(ConnectionId id, absl::Status status);
  // Closes all ends of a machine or process that has died.
  void DropClient(int node, bool machine_is_gone);
  void DropServer();

  // --- faults ---
  void Reset(int node);
  void Cut(int node, bool up, bool down, absl::Duration lasts);
  void Clog(int node, absl::Duration lasts);
  // Ends all faults.
  void Heal();

  // Draws how long a message that is sent now takes.
  absl::Duration Delay();

 private:
  // One direction of a stream; an item is a message or the end of the stream.
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
    StreamClient* client = nullptr;  // null once that end is closed
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
  // Ends the stream at a side whose keepalive pings are not answered.
  void WatchKeepalive(int node);
  template <typename Message>
  void LoseTail(Pipe<Message>& pipe);
  void ForgetIfOver(ConnectionId id);

  World& world_;
  const Plan& plan_;
  StreamServer* server_ = nullptr;
  ConnectionId last_ = 0;
  std::map<ConnectionId, Connection> connections_;
  // Until when messages are blocked, by direction and node.
  std::vector<MonoTime> blocked_[2];
};

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_NETWORK_H_
