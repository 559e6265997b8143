// What an agent serves to its own workers over unix sockets: who they are (worker_calls.h) and the
// store, by call (v1::Store) and without gRPC (store_sockets.h). gRPC starts with the first
// connection: a job whose workers never ask does not pay for it.
//
// One thread at a time uses the object; requests of calls arrive on gRPC's threads.
#ifndef CADRE_AGENT_LOCAL_LOCAL_SERVICE_H_
#define CADRE_AGENT_LOCAL_LOCAL_SERVICE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/core/agent_core.h"
#include "proto/rendezvous.pb.h"
#include "proto/store.pb.h"

namespace cadre {

// Store operations of workers that may wait for an answer at once.
inline constexpr size_t kMaxLocalCalls = 65536;

class LocalService {
 public:
  struct Options {
    std::string job;
    // Address of this node as others reach it.
    std::string address;
    // Where the socket's directory goes; empty: as LocalDirectory chooses.
    std::string parent;
    // That of an agent that is gone, to carry on; empty: a new one.
    std::string directory;
    // Takes a worker's call of the store; on gRPC's threads, must not block. An error is the
    // answer.
    std::function<absl::Status(v1::StoreRequest)> on_request;
    // Takes WorkerMayRejoin and WorkerWaits; likewise.
    std::function<void(AgentEvent)> on_event = [](AgentEvent) {};
  };

  static absl::StatusOr<std::unique_ptr<LocalService>> Open(Options options);
  // Workers that wait are told UNAVAILABLE; takes 100 ms at most.
  ~LocalService();

  // Its directory stays when this object goes, for an agent that carries on.
  void KeepDirectory();

  // Readable when Accept should be called.
  int fd() const;
  // RESOURCE_EXHAUSTED: there are no threads for gRPC; the service is of no use.
  absl::Status Accept();
  // Readable when ReadStore should be called, which gives requests to be answered.
  int store_fd() const;
  std::vector<v1::StoreRequest> ReadStore();

  // The directory, for files that workers and agent share.
  const std::string& directory() const;
  std::string socket_path() const;
  std::string token_path() const;
  const std::string& token() const;

  // Which generation's workers run here, and that it is over: as WorkerCalls has it.
  void BeginGeneration(uint64_t generation, const v1::Assign& assign, bool in_place = false,
                       const std::set<uint32_t>& kept = {},
                       const std::map<uint64_t, uint32_t>& places = {});
  bool WouldStandBy() const;
  std::set<uint64_t> StandingBy() const;
  void EndGeneration(const std::set<uint32_t>& kept, const std::string& reason);
  // Answers whoever waits with this client and request id.
  void Answer(const v1::StoreReply& reply);

 private:
  struct State;
  explicit LocalService(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cadre

#endif  // CADRE_AGENT_LOCAL_LOCAL_SERVICE_H_
