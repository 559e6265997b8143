// One of several servers that share a state in etcd. It stands in reserve, refusing calls, until it
// is elected; then it replays the state and serves, until it is deposed or ends.
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

// How often a server in reserve looks whether somebody leads.
inline constexpr absl::Duration kCampaignInterval = absl::Milliseconds(200);

struct ReplicaOptions {
  log::EtcdOptions etcd;
  // Where clients find this server: shown to those who ask a server in reserve.
  std::string address;
  // Its server_id is for a state that does not exist yet.
  CoreConfig core;
  // Of this object and of the core; called on both threads.
  host::LogFunction log;
  // Puts something round the log; may be absent.
  std::function<absl::StatusOr<std::unique_ptr<log::RecordLog>>(std::unique_ptr<log::RecordLog>)>
      wrap;
};

// Thread safe; has one thread besides the core's.
class Replica {
 public:
  // Stands in reserve when it returns; whether etcd answers shows later. `server` refuses calls so
  // far, and outlives this. INVALID_ARGUMENT: TLS files.
  static absl::StatusOr<std::unique_ptr<Replica>> Start(const ReplicaOptions& options,
                                                        Server& server);
  // Refuses calls, closes streams, and gives the leadership up.
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
