// Fuzzes the index of a sharded checkpoint from a disk that may return anything. The input is
// decoded as it is, and with a valid first line and checksum, so that the lines in between are
// parsed.
#include <string>

#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "worker_runtime/checkpoint/state_index.h"

namespace {

using cadre::checkpoint::StateIndex;

void Decode(absl::string_view text) {
  const auto index = cadre::checkpoint::DecodeIndex(text);
  if (!index.ok()) {
    CADRE_CHECK(index.status().message().find('\n') == std::string::npos);
    return;
  }
  (void)cadre::checkpoint::CheckComplete(*index);
  for (const auto& part : index->parts) {
    uint64_t end = 0;
    for (const auto& range : part.ranges) {
      const auto& tensor = index->tensors.at(range.tensor);
      CADRE_CHECK(range.begin >= 0 && range.count > 0);
      CADRE_CHECK(range.count <= tensor.elements - range.begin);
      CADRE_CHECK(range.offset == end);
      end += static_cast<uint64_t>(range.count) * tensor.element_bytes;
    }
    CADRE_CHECK(part.data_bytes == end);
  }
  const std::string written = cadre::checkpoint::EncodeIndex(*index);
  const auto again = cadre::checkpoint::DecodeIndex(written);
  CADRE_CHECK(again.ok());
  CADRE_CHECK(cadre::checkpoint::EncodeIndex(*again) == written);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text = cadre::fuzz::Text(data, size);
  Decode(text);
  Decode(cadre::checkpoint::SealIndex(text));
  return 0;
}
