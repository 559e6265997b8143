// Huge pages under a memory file, and under memory that is there already. A sum over 100 MiB in 4
// KiB pages takes a fifth to a quarter longer: it misses translations, and pages that lie scattered
// crowd each other out of the cache. The kernel gives none for memory files unless an administrator
// turned them on, but it does when asked for a range explicitly (MADV_COLLAPSE, Linux 6.1). Only
// speed depends on this.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_HUGE_PAGES_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_HUGE_PAGES_H_

#include <cstddef>

#include "base/time.h"

namespace cadre::shared_memory {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Backs as many whole huge pages at the beginning of the file as the kernel gives soon; returns how
// many. The file has its size, and no pages yet.
size_t BackWithHugePages(int fd, size_t bytes);

// Moves the whole huge pages' worth of private memory in [data, data + bytes) into huge pages, in
// place, as many as the kernel gives before `deadline`; returns how many. Threads that use
// the memory meanwhile wait.
size_t MoveToHugePages(void* data, size_t bytes, MonoTime deadline);

// Maps the first `bytes` of the file for reading and writing, all pages present, where huge pages
// can be mapped as such. MAP_FAILED, and errno, on failure.
void* MapFile(int fd, size_t bytes);

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_HUGE_PAGES_H_
