// The agent's service for its own workers over a unix socket (rpc/worker_protocol.h), in two parts:
//
//   WorkerCalls   calls about the worker's rank: Hello and, if the job recovers in place, AwaitEnd
//                 and Rejoin
//   StoreCalls    store operations: which connections wait for which answer
//
// LocalService accepts the connections and passes each call to one of them. Used by one thread at a
// time; never blocks.
#ifndef CADRE_AGENT_LOCAL_LOCAL_SERVICE_H_
#define CADRE_AGENT_LOCAL_LOCAL_SERVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/core/agent_core.h"
#include "agent/local/local_directory.h"
#include "proto/rendezvous.pb.h"
#include "proto/store.pb.h"
#include "rpc/frames/frame_server.h"
#include "rpc/worker_protocol.h"

namespace cadre::agent {

class WorkerCalls {
 public:
  struct Options {
    std::string job;
    // This node's address for other nodes.
    std::string address;
    // Sends a reply on a connection.
    std::function<void(uint64_t connection, const rpc::WorkerReply&)> send;
    // Takes WorkerMayRejoin and WorkerWaits.
    std::function<void(AgentEvent)> on_event;
  };

  explicit WorkerCalls(Options options) : options_(std::move(options)) {}

  // Sets the running generation. Kept workers that wait are sent their new ranks.
  void Begin(uint64_t generation, const v1::Assign& assign, bool in_place,
             const std::set<uint32_t>& kept);
  // Whether a process started as a standby would wait: the generation's workers have asked for
  // their ranks as the worker runtime does and, with recovery in place, take part in it.
  bool WouldStandBy() const { return would_stand_by_ && !ended_; }
  // The generation is over. Kept workers are sent that; the others' calls are refused.
  void End(const std::set<uint32_t>& kept, const std::string& reason);

  void OnCall(uint64_t connection, uint64_t id, const rpc::Hello& call);
  void OnCall(uint64_t connection, uint64_t id, const rpc::AwaitEnd& call);
  void OnCall(uint64_t connection, uint64_t id, const rpc::Rejoin& call);
  // The connection is closed.
  void Forget(uint64_t connection);

 private:
  enum class Kind { kAwaitEnd, kRejoin };
  using Key = std::pair<Kind, uint32_t>;  // with the local rank
  struct Waiting {
    uint64_t connection = 0;
    uint64_t id = 0;
    uint64_t generation = 0;
  };

  // The caller's local rank, or why the call is refused.
  absl::StatusOr<uint32_t> LocalRank(const rpc::Caller& from) const;
  // The same for AwaitEnd and Rejoin.
  absl::StatusOr<uint32_t> InPlaceRank(const rpc::Caller& from) const;
  rpc::Place PlaceOf(uint32_t local_rank) const;
  // Replaces an earlier call of the same worker.
  void Wait(Key key, uint64_t connection, uint64_t id);
  void Refuse(const Waiting& call, const absl::Status& status);

  const Options options_;
  uint64_t generation_ = 0;
  v1::Assign assign_;
  bool in_place_ = false;
  bool would_stand_by_ = false;
  bool ended_ = false;
  std::string reason_;
  std::set<uint32_t> kept_;
  std::map<Key, Waiting> waiting_;
};

// The number of pending operations of all workers; further ones are refused.
inline constexpr size_t kMaxStoreCalls = 65536;

class StoreCalls {
 public:
  // Sends a reply on a connection.
  using Send = std::function<void(uint64_t connection, const rpc::WorkerReply&)>;
  explicit StoreCalls(Send send) : send_(std::move(send)) {}

  // The request for the server; nullopt if it was refused, in which case it has been answered.
  std::optional<v1::StoreRequest> Take(uint64_t connection, uint64_t id, rpc::Store call);
  // Sends the answer to every connection that waits for this client and request id.
  void Answer(const v1::StoreReply& reply);
  // The connection is closed.
  void Forget(uint64_t connection);

 private:
  using Key = std::pair<uint64_t, uint64_t>;  // client, request id

  const Send send_;
  // A request that is repeated on another connection is kept beside the first one.
  std::multimap<Key, uint64_t> waiting_;
};

class LocalService {
 public:
  struct Options {
    std::string job;
    // This node's address for other nodes.
    std::string address;
    // The parent of the socket's directory; empty: LocalDirectory chooses.
    std::string parent;
    // The directory of an agent that is gone, to take over; empty: make a new one.
    std::string directory;
  };

  // When the object is destroyed, pending calls of workers fail with UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<LocalService>> Open(Options options);

  // As LocalDirectory::Restore: true means that something was missing, and directory() may have
  // changed.
  absl::StatusOr<bool> RestoreDirectory();
  // The directory is not removed with this object, for an agent that will adopt the workers.
  void KeepDirectory() { directory_->DoNotRemove(); }

  // Readable when Read should be called.
  int fd() const { return server_->fd(); }
  // Events for the core from workers' calls: StoreRequested, WorkerMayRejoin and WorkerWaits.
  std::vector<AgentEvent> Read();

  // The directory, also for files that workers and agent share.
  const std::string& directory() const { return directory_->path(); }
  std::string socket_path() const { return directory_->socket_path(); }
  std::string token_path() const { return directory_->token_path(); }
  const std::string& token() const { return directory_->token(); }

  // These three are described in WorkerCalls.
  void BeginGeneration(uint64_t generation, const v1::Assign& assign, bool in_place = false,
                       const std::set<uint32_t>& kept = {}) {
    worker_calls_.Begin(generation, assign, in_place, kept);
  }
  bool WouldStandBy() const { return worker_calls_.WouldStandBy(); }
  void EndGeneration(const std::set<uint32_t>& kept, const std::string& reason) {
    worker_calls_.End(kept, reason);
  }
  // Answers the pending call with this client and request id.
  void Answer(const v1::StoreReply& reply) { store_calls_.Answer(reply); }

 private:
  LocalService(const Options& options, std::unique_ptr<LocalDirectory> directory);
  absl::Status Serve();
  absl::Status OnFrame(uint64_t connection, absl::string_view content);
  void Send(uint64_t connection, const rpc::WorkerReply& reply);

  const std::unique_ptr<LocalDirectory> directory_;
  WorkerCalls worker_calls_;
  StoreCalls store_calls_;
  // Collected by the Read in progress.
  std::vector<AgentEvent> events_;
  // Destroyed first, since it then reports closed connections to the other members.
  std::unique_ptr<frames::FrameServer> server_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_LOCAL_LOCAL_SERVICE_H_
