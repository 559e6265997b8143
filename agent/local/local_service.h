// What an agent serves to its own workers over a unix socket (rpc/worker_protocol.h): their places
// (worker_calls.h) and the store (store_calls.h).
//
// One thread at a time uses the object, which never blocks.
#ifndef CADRE_AGENT_LOCAL_LOCAL_SERVICE_H_
#define CADRE_AGENT_LOCAL_LOCAL_SERVICE_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/core/agent_core.h"
#include "agent/local/local_directory.h"
#include "agent/local/store_calls.h"
#include "agent/local/worker_calls.h"
#include "proto/rendezvous.pb.h"
#include "proto/store.pb.h"
#include "rpc/frames/frame_server.h"

namespace cadre::agent {

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
  };

  // When the object goes, workers that wait are told UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<LocalService>> Open(Options options);

  // As the directory's: true, something of it was missing, and directory() may be another.
  absl::StatusOr<bool> RestoreDirectory();
  // Its directory stays when this object goes, for an agent that carries on.
  void KeepDirectory() { directory_->Keep(); }

  // Readable when Read should be called.
  int fd() const { return server_->fd(); }
  // What workers ask of the core now: WorkerAsked, WorkerMayRejoin and WorkerWaits.
  std::vector<AgentEvent> Read();

  // The directory, for files that workers and agent share.
  const std::string& directory() const { return directory_->path(); }
  std::string socket_path() const { return directory_->socket_path(); }
  std::string token_path() const { return directory_->token_path(); }
  const std::string& token() const { return directory_->token(); }

  // Workers of the job encrypt, so those that cannot are refused.
  void SetEncrypts(bool encrypts) { encrypts_ = encrypts; }
  // Which generation's workers run here, and that it is over: as WorkerCalls has it.
  void BeginGeneration(uint64_t generation, const v1::Assign& assign, bool in_place = false,
                       const std::set<uint32_t>& kept = {}) {
    worker_calls_.Begin(generation, assign, in_place, kept);
  }
  bool WouldStandBy() const { return worker_calls_.WouldStandBy(); }
  void EndGeneration(const std::set<uint32_t>& kept, const std::string& reason) {
    worker_calls_.End(kept, reason);
  }
  // Answers whoever waits with this client and request id.
  void Answer(const v1::StoreReply& reply) { store_calls_.Answer(reply); }

 private:
  LocalService(const Options& options, std::unique_ptr<LocalDirectory> directory);
  absl::Status Serve();
  absl::Status OnFrame(uint64_t connection, absl::string_view content);
  void Send(uint64_t connection, const rpc::WorkerReply& reply);

  const std::unique_ptr<LocalDirectory> directory_;
  bool encrypts_ = false;
  WorkerCalls worker_calls_;
  StoreCalls store_calls_;
  // Of the Read that goes on.
  std::vector<AgentEvent> events_;
  // Goes first: at its end it tells the others who has gone.
  std::unique_ptr<frames::FrameServer> server_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_LOCAL_LOCAL_SERVICE_H_
