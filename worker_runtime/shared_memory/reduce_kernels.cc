#include "worker_runtime/shared_memory/reduce_kernels.h"

#include <cstdint>
#include <type_traits>

namespace cadre::shared_memory {
namespace {

#define CADRE_HAS_F16C 0
#include "worker_runtime/shared_memory/reduce_loops.inc"
#undef CADRE_HAS_F16C

}  // namespace

void ReduceElementsPortably(const ElementReduction& reduction) { ReduceWith(reduction); }

void ReduceElements(const ElementReduction& reduction) {
  static const bool is_wide = HasWideReduction();
  if (is_wide) {
    ReduceElementsWide(reduction);
  } else {
    ReduceElementsPortably(reduction);
  }
}

}  // namespace cadre::shared_memory
