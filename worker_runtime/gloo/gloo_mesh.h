// Connections between all ranks of a communicator, with our transport between Gloo and them.
#ifndef CADRE_WORKER_RUNTIME_GLOO_GLOO_MESH_H_
#define CADRE_WORKER_RUNTIME_GLOO_GLOO_MESH_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/store.h"
#include "worker_runtime/gloo/watched_transport.h"

namespace cadre::gloo {

class WatchedMesh : public ::gloo::rendezvous::Context {
 public:
  using ::gloo::rendezvous::Context::Context;

  // Throws what Gloo throws. The ranks find each other through `store`.
  void Connect(::gloo::rendezvous::Store* store, const std::string& address,
               absl::Duration timeout);
  WatchedContext& watched() { return *watched_; }

 private:
  std::shared_ptr<WatchedContext> watched_;
};

// A deadline that Gloo can still count in milliseconds.
constexpr absl::Duration kMaxGlooTimeout = absl::Hours(24);

}  // namespace cadre::gloo

#endif  // CADRE_WORKER_RUNTIME_GLOO_GLOO_MESH_H_
