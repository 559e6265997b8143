// One of several servers that share their state in etcd. As a standby it refuses calls until it is
// elected; then it replays the state and serves, until it is deposed or shut down.
//
//   RESERVE --leader key won--> replay --> LEADS --lease lost / a write refused--> RESERVE
#ifndef CADRE_RENDEZVOUS_SERVICE_REPLICA_H_
#define CADRE_RENDEZVOUS_SERVICE_REPLICA_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/core/core.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/log/etcd_client.h"
#include "rendezvous/log/record_log.h"
#include "rendezvous/service/server.h"

namespace cadre::service {

// How often a standby checks whether there is a leader.
inline constexpr absl::Duration kCampaignInterval = absl::Milliseconds(200);

struct ReplicaOptions {
  log::EtcdOptions etcd;
  // Where clients find this server; standbys name the leader's address to clients.
  std::string address;
  // Its server_id is used if no state exists yet.
  CoreConfig core;
  // Receives log lines of this object and of the core, on both threads.
  host::LogFunction log;
  // Takes the jobs that end while it leads; may be null.
  host::AccountFunction account;
  // Wraps the log; may be null.
  std::function<absl::StatusOr<std::unique_ptr<log::RecordLog>>(std::unique_ptr<log::RecordLog>)>
      wrap;
};

// Thread safe; has one thread besides the core's.
class Replica {
 public:
  // The server is a standby when it returns; errors of etcd show later. `server` must refuse calls
  // until then, and outlive this object. INVALID_ARGUMENT: the TLS files.
  static absl::StatusOr<std::unique_ptr<Replica>> Start(const ReplicaOptions& options,
                                                        Server& server);
  // Refuses calls, closes streams, and gives up the leadership.
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

 private:
  struct Impl;
  explicit Replica(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_REPLICA_H_
