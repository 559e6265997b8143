// The frames must be the same however their bytes are split.
#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "rpc/frames/frame_reader.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

constexpr size_t kLimit = 4096;

// Returns the frames of `bytes`, which arrive `piece` bytes at a time, with "refused" at the end if
// one is refused.
std::vector<std::string> Frames(absl::string_view bytes, size_t piece) {
  cadre::frames::FrameReader reader(kLimit);
  std::vector<std::string> frames;
  while (!bytes.empty()) {
    reader.Append(bytes.substr(0, piece));
    bytes.remove_prefix(std::min(piece, bytes.size()));
    absl::string_view content;
    absl::StatusOr<bool> next = true;
    while ((next = reader.Next(&content)).ok() && *next) frames.emplace_back(content);
    if (!next.ok()) {
      frames.emplace_back("refused");
      return frames;
    }
  }
  return frames;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view bytes = cadre::fuzz::Text(data + 1, size - 1);
  CADRE_CHECK(Frames(bytes, bytes.size()) == Frames(bytes, 1 + data[0] % 16));
  return 0;
}
