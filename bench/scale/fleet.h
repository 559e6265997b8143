// Simulated agents: each has its own connection and stream to the server and does what an agent
// says on it, without workers. They are served by gRPC's threads of this process.
#ifndef CADRE_BENCH_SCALE_FLEET_H_
#define CADRE_BENCH_SCALE_FLEET_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "proto/rendezvous.pb.h"

namespace cadre {

// Of agents and other clients: where the server is, and what it wants to see.
struct ServerAddress {
  std::string endpoint;
  std::string token;

  // TLS where the token names the server's key, else clear text.
  std::shared_ptr<grpc::ChannelCredentials> Credentials() const;
};

// How often an agent renews its lease.
inline constexpr absl::Duration kRenewInterval = absl::Seconds(3);

struct FleetOptions {
  ServerAddress server;
  std::string job;
  size_t agents = 1;
  uint32_t slots = 8;
};

// Thread safe.
class Fleet {
 public:
  // Runs on gRPC's threads, before the agent itself acts; must not block.
  using Observer = std::function<void(size_t agent, const v1::ServerMessage& message)>;

  // An agent joins when its stream is open, renews its lease, reports its workers when it is
  // assigned, and that they are gone when it is told to stop.
  Fleet(FleetOptions options, Observer observer);
  // Cancels the streams and waits for their end.
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  // Opens all streams.
  void Connect();
  // The message goes out in the agent's name, of the generation that it knows.
  void Send(size_t agent, v1::NodeMessage message);
  size_t size() const;
  // The first stream that ended by itself, in words; empty: none has.
  std::string broken() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace cadre

#endif  // CADRE_BENCH_SCALE_FLEET_H_
