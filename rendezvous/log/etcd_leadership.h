// Which of several servers leads: the one that made the leader key, which is bound to a lease of
// its own and goes with it. What a leader writes is guarded by the key's create revision, so that
// one that was deposed without noticing writes nothing. Thread safe.
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

// How long the key outlives its server: the shortest that etcd allows with its default timing, and
// it looks for ended leases twice a second. Renewed four times within that.
inline constexpr absl::Duration kLeadershipTtl = absl::Seconds(2);
inline constexpr absl::Duration kRenewalRetry = absl::Milliseconds(100);

class Leadership {
 public:
  struct Options {
    std::shared_ptr<EtcdClient> client;
    std::string prefix;
    // The value of the key: where clients find this server.
    std::string address;
    // A leader whose lease could not be renewed for this long gives up. Until then an etcd that is
    // away changes nothing, because without it nobody else is elected.
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

  // Somebody has found out that it is over.
  void Lose(absl::Status why);
  // Waits for `timeout` at most; OK: it still lasts.
  absl::Status AwaitLoss(absl::Duration timeout);

 private:
  Leadership(const Options& options, int64_t lease, int64_t create_revision, MonoTime confirmed_at,
             absl::Duration ttl);
  void Renew();
  void LoseLocked(absl::Status why);

  const Options options_;
  const std::string key_;
  const int64_t lease_;
  const int64_t create_revision_;
  const absl::Duration ttl_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  absl::Status lost_;
  // When the last renewal that etcd answered was sent.
  MonoTime confirmed_at_;

  std::thread thread_;
};

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_ETCD_LEADERSHIP_H_
