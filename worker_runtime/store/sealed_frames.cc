#include "worker_runtime/store/sealed_frames.h"

#include <utility>

#include "rpc/frames/frame_reader.h"

namespace cadre::store {

SealedFrames::SealedFrames(wire::RecordKeys keys)
    : outgoing_(std::move(keys.outgoing), wire::RecordCipher::Use::kSeal),
      incoming_(std::move(keys.incoming), wire::RecordCipher::Use::kOpen) {}

std::string SealedFrames::Seal(absl::string_view frame) {
  const absl::string_view content = frame.substr(frames::kLengthBytes);
  std::string sealed(content.size() + kMoreBytes, '\0');
  outgoing_.Begin("");
  outgoing_.Update(&sealed[0], content.data(), content.size());
  outgoing_.MakeTag(&sealed[content.size()]);
  std::string out;
  frames::AppendFrame(sealed, &out);
  return out;
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
