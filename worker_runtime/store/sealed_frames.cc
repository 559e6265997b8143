#include "worker_runtime/store/sealed_frames.h"

#include <utility>

#include "rpc/frames/frame_reader.h"

namespace cadre::store {

SealedFrames::SealedFrames(wire::RecordKeys keys)
    : outgoing_(std::move(keys.outgoing), wire::RecordCipher::Use::kSeal),
      incoming_(std::move(keys.incoming), wire::RecordCipher::Use::kOpen) {}

std::string SealedFrames::Seal(std::string frame) {
  const size_t bytes = frame.size() - frames::kLengthBytes;
  frame.resize(frame.size() + kMoreBytes);
  char* const content = &frame[frames::kLengthBytes];
  outgoing_.Begin("");
  outgoing_.Update(content, content, bytes);
  outgoing_.MakeTag(content + bytes);
  frames::CloseFrame(0, &frame);
  return frame;
}

Result<std::string> SealedFrames::Open(absl::string_view content) {
  const Status altered = UnavailableError("what came was altered on its way");
  if (content.size() < kMoreBytes) return altered;
  std::string opened(content.size() - kMoreBytes, '\0');
  incoming_.Begin("");
  incoming_.Update(&opened[0], content.data(), opened.size());
  if (!incoming_.HasTag(&content[opened.size()])) return altered;
  return opened;
}

}  // namespace cadre::store
