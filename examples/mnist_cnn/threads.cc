#include "threads.h"

#include <dlfcn.h>

#include "torch/utils.h"

namespace cadre::mnist {

void SetThreads(int threads, int world_size) {
  if (threads == 0 && world_size > 1) threads = 1;
  if (threads == 0) return;
  torch::set_num_threads(threads);
  // The BLAS behind libtorch has a pool of its own.
  using SetBlasThreads = void (*)(int);
  auto* set = reinterpret_cast<SetBlasThreads>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"));
  if (set != nullptr) set(threads);
}

}  // namespace cadre::mnist
