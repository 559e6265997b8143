// Fuzzes the frames between agent and supervisor: decoding and encoding must give the same bytes.
#include "agent/supervisor/frames.h"
#include "base/check.h"
#include "rpc/frames/frame_reader.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cadre::frames::FrameReader reader(cadre::supervisor::kMaxFrameBytes);
  reader.Append(cadre::fuzz::Text(data, size));
  while (true) {
    const auto frame = cadre::supervisor::NextFrame(reader);
    if (!frame.ok() || !frame->has_value()) return 0;
    const std::string bytes = cadre::supervisor::EncodeFrame(**frame);
    cadre::frames::FrameReader again(cadre::supervisor::kMaxFrameBytes);
    again.Append(bytes);
    const auto same = cadre::supervisor::NextFrame(again);
    CADRE_CHECK(same.ok() && same->has_value());
    CADRE_CHECK(cadre::supervisor::EncodeFrame(**same) == bytes);
  }
}
