// A client of PyTorch's TCPStore, as far as ranks need one that torchrun serves to tell each other
// where their own store is. Speaks the protocol of PyTorch 2.1 and newer. One thread.
#ifndef CADRE_WORKER_RUNTIME_LAUNCHED_TORCH_STORE_H_
#define CADRE_WORKER_RUNTIME_LAUNCHED_TORCH_STORE_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/scoped_fd.h"
#include "base/time.h"
#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre::launched {

class TorchStore {
 public:
  // Connects to "10.0.0.1:4567" and has the other side prove that it speaks the protocol. Waits
  // kAnswerPatience at most, as each further call. UNAVAILABLE: nobody listens there, or it does
  // not answer as such a store.
  static Result<TorchStore> Connect(const std::string& endpoint);
  static constexpr absl::Duration kAnswerPatience = absl::Seconds(5);

  // UNAVAILABLE: the store is gone, or does not answer.
  Status Set(absl::string_view key, absl::string_view value);
  // nullopt: the key is not there. INTERNAL: its value is longer than `limit`.
  Result<std::optional<std::string>> Get(absl::string_view key, size_t limit);

  // Of this machine, as the store's reaches it.
  std::string local_address() const;

 private:
  explicit TorchStore(ScopedFd socket) : socket_(std::move(socket)) {}
  Status Send(absl::string_view bytes, MonoTime deadline);
  Result<std::string> Receive(size_t size, MonoTime deadline);

  ScopedFd socket_;
};

}  // namespace cadre::launched

#endif  // CADRE_WORKER_RUNTIME_LAUNCHED_TORCH_STORE_H_
