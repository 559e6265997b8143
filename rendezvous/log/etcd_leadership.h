// Elects the leader of several servers: the server that created the leader key, which is bound to a
// lease and disappears with it. A leader's writes are guarded by the key's create revision, so that
// a leader that was deposed without noticing cannot write. Thread safe.
#ifndef CADRE_RENDEZVOUS_LOG_ETCD_LEADERSHIP_H_
#define CADRE_RENDEZVOUS_LOG_ETCD_LEADERSHIP_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "rendezvous/log/etcd_client.h"

namespace cadre::log {

// How long the key outlives its server: the shortest time that etcd allows with its default timing;
// etcd looks for expired leases twice a second. The lease is renewed four times within it.
inline constexpr absl::Duration kLeadershipTtl = absl::Seconds(2);
inline constexpr absl::Duration kRenewalRetry = absl::Milliseconds(100);

class Leadership {
 public:
  struct Options {
    std::shared_ptr<EtcdClient> client;
    std::string prefix;
    // The value of the key: the address at which clients find this server.
    std::string address;
    // A leader whose lease could not be renewed for this long gives up. An outage of etcd that is
    // shorter has no effect, because without etcd no other server is elected.
    absl::Duration unconfirmed_limit;
    absl::Duration ttl = kLeadershipTtl;
  };
  struct Outcome {
    // Null: another server leads.
    std::unique_ptr<Leadership> won;
    std::string leader;
  };

  // One attempt; two calls to etcd at most. Errors as EtcdClient's.
  static absl::StatusOr<Outcome> Campaign(const Options& options);
  // Gives the leadership up, so that another server need not wait for the lease to end.
  ~Leadership();
  Leadership(const Leadership&) = delete;
  Leadership& operator=(const Leadership&) = delete;

  const std::string& key() const { return key_; }
  int64_t create_revision() const { return create_revision_; }

  // Called by code that finds out that the leadership has ended: AwaitLoss returns `why`.
  void MarkLost(absl::Status why);
  // Waits until the leadership ends, for `timeout` at most; OK: it still lasts.
  absl::Status AwaitLoss(absl::Duration timeout);

 private:
  Leadership(const Options& options, int64_t lease, int64_t create_revision, MonoTime confirmed_at,
             absl::Duration ttl);
  void Renew();
  void MarkLostLocked(absl::Status why);

  const Options options_;
  const std::string key_;
  const int64_t lease_;
  const int64_t create_revision_;
  const absl::Duration ttl_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  absl::Status lost_;
  // When the last renewal that etcd has confirmed was sent.
  MonoTime confirmed_at_;

  std::thread thread_;
};

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_ETCD_LEADERSHIP_H_
