// Calls to etcd, each with a deadline. Thread safe; every call blocks.
#ifndef CADRE_RENDEZVOUS_LOG_ETCD_CLIENT_H_
#define CADRE_RENDEZVOUS_LOG_ETCD_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/etcd.pb.h"
#include "rpc/tls/transport_security.h"

namespace cadre::log {

struct EtcdOptions {
  // host:port of the members of one etcd cluster; members that do not answer are skipped.
  std::vector<std::string> endpoints;
  rpc::TransportSecurity security;
  // The prefix of every key. Servers with the same prefix share a state.
  std::string prefix;
};

// The limit of one call, at all endpoints together.
inline constexpr absl::Duration kEtcdCallTimeout = absl::Seconds(2);

class EtcdClient {
 public:
  // Connects at the first call. INVALID_ARGUMENT: the TLS files.
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Make(const EtcdOptions& options);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  // All calls may fail with UNAVAILABLE (etcd does not answer, or has no leader itself),
  // RESOURCE_EXHAUSTED (its space is used up), PERMISSION_DENIED, and other errors of etcd; each
  // message names etcd. A call that fails with UNAVAILABLE may have been carried out, or may still
  // be.
  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request);
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request);
  absl::StatusOr<etcdserverpb::LeaseGrantResponse> Grant(absl::Duration ttl);
  // Returns the lease's remaining time; 0: the lease has expired.
  absl::StatusOr<absl::Duration> KeepAlive(int64_t lease);
  absl::Status Revoke(int64_t lease);

 private:
  struct Impl;
  explicit EtcdClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Replaces frequent errors of gRPC by texts of our own that are equal each time for the same fault,
// so that logs of new errors do not repeat it.
std::string EtcdReason(absl::StatusCode code, const std::string& text);

// Add parts to requests.
void PutKey(absl::string_view key, std::string value, int64_t lease,
            etcdserverpb::RequestOp* request);
void GetKey(absl::string_view key, etcdserverpb::RequestOp* request);
// "The key was created at this revision"; 0: it does not exist.
void CreatedAt(absl::string_view key, int64_t revision, etcdserverpb::Compare* compare);
// Likewise for the key's last change.
void ChangedAt(absl::string_view key, int64_t revision, etcdserverpb::Compare* compare);

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_ETCD_CLIENT_H_
