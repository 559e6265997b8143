// Fuzzes a state's file that another process wrote or cut short. Either all bytes that its label
// promises are there, or the file is refused.
#include <unistd.h>

#include <cstdlib>

#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "worker_runtime/memory/files/memory_slots.h"

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
      // The last byte must be readable.
      const volatile char* const end = state->data() + memory::kStateOffset + label->bytes;
      (void)end[-1];
    }
  }
  unlink(path);
  return 0;
}
