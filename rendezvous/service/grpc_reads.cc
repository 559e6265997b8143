#include "rendezvous/service/grpc_reads.h"

#include <grpc/slice.h>
#include <sys/socket.h>

#include <atomic>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"

// Declarations from gRPC 1.51 (src/core/ext/transport/chttp2/transport,
// src/core/lib/iomgr/endpoint.h).
struct grpc_chttp2_transport;
struct grpc_endpoint;
struct grpc_transport;
namespace grpc_core {
class ChannelArgs;
}
int grpc_endpoint_get_fd(grpc_endpoint* endpoint);

#define CADRE_CREATE "_Z28grpc_create_chttp2_transportRKN9grpc_core11ChannelArgsEP13grpc_endpointb"
#define CADRE_READ "_Z24grpc_chttp2_perform_readP21grpc_chttp2_transportRK10grpc_slice"
#define CADRE_DESTROY "_Z21grpc_endpoint_destroyP13grpc_endpoint"

// Starts HTTP/2 on a connection; returns its grpc_chttp2_transport.
grpc_transport* RealCreate(const grpc_core::ChannelArgs& arguments, grpc_endpoint* endpoint,
                           bool is_client) asm("__real_" CADRE_CREATE);
grpc_transport* WrapCreate(const grpc_core::ChannelArgs& arguments, grpc_endpoint* endpoint,
                           bool is_client) asm("__wrap_" CADRE_CREATE);
// Handles bytes read from it, after TLS is removed. Not OK: the connection is closed.
absl::Status RealRead(grpc_chttp2_transport* transport,
                      const grpc_slice& slice) asm("__real_" CADRE_READ);
absl::Status WrapRead(grpc_chttp2_transport* transport,
                      const grpc_slice& slice) asm("__wrap_" CADRE_READ);
// The connection is destroyed.
void RealDestroy(grpc_endpoint* endpoint) asm("__real_" CADRE_DESTROY);
void WrapDestroy(grpc_endpoint* endpoint) asm("__wrap_" CADRE_DESTROY);

namespace cadre::service {
namespace {

// The connections that are watched.
class Watched {
 public:
  struct Connection {
    std::shared_ptr<ConnectionWatch> watch;
    grpc_endpoint* endpoint = nullptr;
  };

  static Watched& Get() {
    static auto* const all = new Watched;
    return *all;
  }

  void Announce(int fd, std::shared_ptr<ConnectionWatch> watch) {
    const absl::MutexLock lock(&mutex_);
    std::swap(announced_[fd], watch);
    UpdateCount();
  }
  // Returns null if the descriptor was not announced.
  std::shared_ptr<ConnectionWatch> TakeAnnounced(int fd) {
    if (count_.load(std::memory_order_relaxed) == 0) return nullptr;
    const absl::MutexLock lock(&mutex_);
    const auto found = announced_.find(fd);
    if (found == announced_.end()) return nullptr;
    std::shared_ptr<ConnectionWatch> watch = std::move(found->second);
    announced_.erase(found);
    UpdateCount();
    return watch;
  }
  void Add(const void* transport, Connection connection) {
    const absl::MutexLock lock(&mutex_);
    transports_[connection.endpoint] = transport;
    connections_[transport] = std::move(connection);
    UpdateCount();
  }
  // The result has no watch if the connection is not watched.
  Connection Find(const void* transport) {
    // Most processes have no server, and take no lock here.
    if (count_.load(std::memory_order_relaxed) == 0) return {};
    const absl::ReaderMutexLock lock(&mutex_);
    const auto found = connections_.find(transport);
    return found == connections_.end() ? Connection() : found->second;
  }
  void RemoveEndpoint(const void* endpoint) {
    if (count_.load(std::memory_order_relaxed) == 0) return;
    // Destroyed after the lock is released, because its destructor takes other locks.
    Connection removed;
    const absl::MutexLock lock(&mutex_);
    const auto transport = transports_.find(endpoint);
    if (transport == transports_.end()) return;
    const auto found = connections_.find(transport->second);
    removed = std::move(found->second);
    connections_.erase(found);
    transports_.erase(transport);
    UpdateCount();
  }

 private:
  void UpdateCount() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    count_.store(announced_.size() + transports_.size(), std::memory_order_relaxed);
  }

  absl::Mutex mutex_;
  absl::flat_hash_map<int, std::shared_ptr<ConnectionWatch>> announced_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<const void*, Connection> connections_ ABSL_GUARDED_BY(mutex_);
  // By endpoint, which is what gRPC destroys.
  absl::flat_hash_map<const void*, const void*> transports_ ABSL_GUARDED_BY(mutex_);
  std::atomic<size_t> count_{0};
};

}  // namespace

void WatchReads(int fd, std::shared_ptr<ConnectionWatch> watch) {
  Watched::Get().Announce(fd, std::move(watch));
}

}  // namespace cadre::service

using cadre::service::ConnectionWatch;
using cadre::service::Watched;

grpc_transport* WrapCreate(const grpc_core::ChannelArgs& arguments, grpc_endpoint* endpoint,
                           bool is_client) {
  std::shared_ptr<ConnectionWatch> watch;
  if (!is_client) watch = Watched::Get().TakeAnnounced(grpc_endpoint_get_fd(endpoint));
  grpc_transport* const transport = RealCreate(arguments, endpoint, is_client);
  // Nothing is read from the connection before this returns.
  if (watch != nullptr) Watched::Get().Add(transport, {std::move(watch), endpoint});
  return transport;
}

absl::Status WrapRead(grpc_chttp2_transport* transport, const grpc_slice& slice) {
  const Watched::Connection connection = Watched::Get().Find(transport);
  if (connection.watch != nullptr) {
    const absl::string_view bytes(reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)),
                                  GRPC_SLICE_LENGTH(slice));
    const absl::Status may = connection.watch->OnRead(bytes, cadre::MonoNow());
    if (!may.ok()) {
      // gRPC closes the connection after it has written what it has begun to write, which a peer
      // that does not read would delay.
      shutdown(grpc_endpoint_get_fd(connection.endpoint), SHUT_RDWR);
      return may;
    }
  }
  return RealRead(transport, slice);
}

void WrapDestroy(grpc_endpoint* endpoint) {
  // A connection that never reached HTTP/2, as after a failed TLS handshake, is still announced.
  Watched::Get().TakeAnnounced(grpc_endpoint_get_fd(endpoint));
  Watched::Get().RemoveEndpoint(endpoint);
  RealDestroy(endpoint);
}
