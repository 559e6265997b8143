// The loops of reduce_kernels.h for processors with AVX2, FMA and F16C.
#include <cstdint>
#include <type_traits>

#include "worker_runtime/shared_memory/reduce_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

namespace cadre::shared_memory {

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace {

#define CADRE_HAS_F16C 1
#include "worker_runtime/shared_memory/reduce_loops.inc"
#undef CADRE_HAS_F16C

}  // namespace

void ReduceElementsWide(const ElementReduction& reduction) { ReduceWith(reduction); }

#pragma GCC pop_options

bool HasWideReduction() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

}  // namespace cadre::shared_memory

#else

namespace cadre::shared_memory {

bool HasWideReduction() { return false; }
void ReduceElementsWide(const ElementReduction& reduction) { ReduceElementsPortably(reduction); }

}  // namespace cadre::shared_memory

#endif
