#include "worker_runtime/gloo/gloo_mesh.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>

#include "absl/strings/str_replace.h"
#include "gloo/transport/tcp/device.h"

namespace cadre {
namespace {

// While this lives, threads that are started inherit a blocked SIGPIPE: Gloo writes to sockets
// whose peer may be gone, and a library must not change what signals mean to the program.
class BlockedPipeSignal {
 public:
  BlockedPipeSignal() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~BlockedPipeSignal() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

void WatchedMesh::Connect(::gloo::rendezvous::Store* store, const std::string& address,
                          absl::Duration timeout) {
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

std::string OneLine(absl::string_view text) { return absl::StrReplaceAll(text, {{"\n", " "}}); }

}  // namespace cadre
