// Fuzzes records that were made without the key, in pieces of any size: none may be accepted.
#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "worker_runtime/wire/connection.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cadre::wire;  // NOLINT: of this function alone
  absl::string_view bytes = cadre::fuzz::Text(data, size);
  RecordReader reader(std::string(32, 'k'));
  while (!bytes.empty()) {
    const iovec room = reader.room();
    if (room.iov_len == 0) break;
    const size_t some = std::min({bytes.size(), room.iov_len, size_t{1} + bytes.size() / 2});
    memcpy(room.iov_base, bytes.data(), some);
    reader.Add(some);
    bytes.remove_prefix(some);
    char content[100];
    const iovec part = {content, sizeof(content)};
    const ssize_t read = reader.Read(Parts(&part, 1));
    CADRE_CHECK(read <= 0, read, " bytes were taken without the key");
    if (read < 0) break;
  }
  return 0;
}
