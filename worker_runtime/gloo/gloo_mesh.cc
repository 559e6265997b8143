#include "worker_runtime/gloo/gloo_mesh.h"

#include <algorithm>

#include "gloo/transport/tcp/device.h"
#include "worker_runtime/gloo/blocked_pipe_signal.h"

namespace cadre::gloo {

void WatchedMesh::Connect(::gloo::rendezvous::Store* store, const std::string& address,
                          absl::Duration timeout) {
  // Gloo starts its thread here.
  const BlockedPipeSignal blocked;
  setTimeout(absl::ToChronoMilliseconds(std::min(timeout, kMaxGlooTimeout)));
  ::gloo::transport::tcp::attr attributes;
  attributes.hostname = address;
  std::shared_ptr<::gloo::transport::Device> device =
      ::gloo::transport::tcp::CreateDevice(attributes);
  connectFullMesh(*store, device);
  watched_ = std::make_shared<WatchedContext>(transportContext_);
  transportContext_ = watched_;
}

}  // namespace cadre::gloo
