// A client or server without the key must never be accepted as a peer.
#include <string>

#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "worker_runtime/sockets/handshake.h"

namespace {

using cadre::sockets::Handshake;

void Feed(Handshake handshake, absl::string_view bytes) {
  while (!handshake.is_done()) {
    if (bytes.size() < handshake.wanted()) return;
    const absl::string_view next = bytes.substr(0, handshake.wanted());
    bytes.remove_prefix(next.size());
    if (!handshake.Receive(next).ok()) return;
    handshake.output().clear();
  }
  cadre::CheckFailed(__FILE__, __LINE__, "not done", "it was taken for a peer without the key");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes = cadre::fuzz::Text(data, size);
  const std::string nonce(cadre::sockets::kNonceBytes, 'n');
  Feed(Handshake::Answer({"the key"}, 1, 4, nonce), bytes);
  Feed(Handshake::Call({"the key"}, 2, 1, cadre::sockets::Purpose::kCollectives, nonce), bytes);
  return 0;
}
