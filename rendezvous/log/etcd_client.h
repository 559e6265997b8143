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
  // host:port of the members of one etcd; those that do not answer are passed over.
  std::vector<std::string> endpoints;
  rpc::TransportSecurity security;
  // Every key begins with it. Servers with the same one share a state.
  std::string prefix;
};

// Of one call, at all endpoints together.
inline constexpr absl::Duration kEtcdCallTimeout = absl::Seconds(2);

class EtcdClient {
 public:
  // Connects with the first call. INVALID_ARGUMENT: TLS files.
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Make(const EtcdOptions& options);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  // Errors of all: UNAVAILABLE (etcd does not answer, or has no leader of its own),
  // RESOURCE_EXHAUSTED (its space is used up), PERMISSION_DENIED, and others as etcd gives them;
  // each names etcd. After UNAVAILABLE the call may have been, or may still be, carried out.
  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request);
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request);
  absl::StatusOr<etcdserverpb::LeaseGrantResponse> Grant(absl::Duration ttl);
  // How long the lease now lives; 0: it is no more.
  absl::StatusOr<absl::Duration> KeepAlive(int64_t lease);
  absl::Status Revoke(int64_t lease);

 private:
  struct Impl;
  explicit EtcdClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// gRPC's words for what happens often, in ours: the same for the same fault each time, so that
// whoever says what is new says it once.
std::string EtcdReason(absl::StatusCode code, const std::string& text);

// Parts of requests.
void PutKey(absl::string_view key, std::string value, int64_t lease,
            etcdserverpb::RequestOp* request);
void GetKey(absl::string_view key, etcdserverpb::RequestOp* request);
// "The key was created at this revision"; 0: it does not exist.
void CreatedAt(absl::string_view key, int64_t revision, etcdserverpb::Compare* compare);
// Likewise for its last change.
void ChangedAt(absl::string_view key, int64_t revision, etcdserverpb::Compare* compare);

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_ETCD_CLIENT_H_
