// absl::Status's last reference: only in programs built with --config=tsan.
//
// Debian's Abseil is not instrumented, so the sanitizer would not see that whoever frees a status
// has waited for all who gave up their reference before. The definition in a program comes before
// that of the shared library it loads; this is Abseil's own, compiled where the sanitizer looks.

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"

namespace absl {
ABSL_NAMESPACE_BEGIN

void Status::UnrefNonInlined(uintptr_t rep) {
  status_internal::StatusRep* const shared = RepToPointer(rep);
  if (shared->ref.fetch_sub(1, std::memory_order_acq_rel) == 1) delete shared;
}

ABSL_NAMESPACE_END
}  // namespace absl
