// Fuzzes a worker's progress page, which the worker may write at will and its agent reads.
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/check.h"
#include "base/progress_snapshot.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  char path[] = "/dev/shm/cadre_page_XXXXXX";
  const int fd = mkstemp(path);
  CADRE_CHECK(fd >= 0);
  const bool written = write(fd, data, size) == static_cast<ssize_t>(size);
  close(fd);
  const auto page = cadre::ReadProgressPage(path);
  unlink(path);
  CADRE_CHECK(written);
  if (!page.ok()) return 0;
  CADRE_CHECK(page->collectives.size() <= 1024);
  CADRE_CHECK(!cadre::Describe(*page, cadre::MonoTime()).empty());
  return 0;
}
