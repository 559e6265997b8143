// A file that holds a state, which another process wrote, or cut short: what its label promises is
// there, or it is refused.
#include <unistd.h>

#include <cstdlib>

#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "worker_runtime/memory/files/slot_file.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cadre;
  char path[] = "/dev/shm/cadre_slot_XXXXXX";
  const int fd = mkstemp(path);
  CADRE_CHECK(fd >= 0);
  const bool written = write(fd, data, size) == static_cast<ssize_t>(size);
  close(fd);
  CADRE_CHECK(written);
  if (const auto label = memory::ReadLabel(path)) {
    const auto state = memory::MapState(path, label->bytes);
    if (state.ok() && label->bytes > 0) {
      // The last byte can be read.
      const volatile char* const end = state->data() + memory::kStateOffset + label->bytes;
      (void)end[-1];
    }
  }
  unlink(path);
  return 0;
}
