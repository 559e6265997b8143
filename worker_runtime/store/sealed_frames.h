// The content of frames on an encrypted connection to a store: each is a record of its own. Pure;
// one thread at a time.
#ifndef CADRE_WORKER_RUNTIME_STORE_SEALED_FRAMES_H_
#define CADRE_WORKER_RUNTIME_STORE_SEALED_FRAMES_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "cadre/result.h"
#include "worker_runtime/wire/record_cipher.h"

namespace cadre::store {

class SealedFrames {
 public:
  // So much longer a frame is.
  static constexpr size_t kMoreBytes = wire::kRecordTagBytes;

  explicit SealedFrames(wire::RecordKeys keys);

  // Makes a sealed frame of one with its length, in the order in which they are sent.
  std::string Seal(std::string frame);
  // The content of the next frame that came. UNAVAILABLE, for good: it is not what was sent.
  Result<std::string> Open(absl::string_view content);

 private:
  wire::RecordCipher outgoing_;
  wire::RecordCipher incoming_;
};

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_SEALED_FRAMES_H_
