#include "worker_runtime/nccl/nccl_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "worker_runtime/cuda/vendor_library.h"

namespace cadre::nccl {

Result<void*> NcclFunction(const char* name) {
  static const auto* const library =
      new Result<void*>(cuda::OpenVendorLibrary({"NCCL", "CADRE_NCCL_LIBRARY", {"libnccl.so.2"}}));
  if (!library->ok()) return library->status();
  void* const function = dlsym(**library, name);
  if (function != nullptr) return function;
  return NotFoundError(absl::StrCat("the NCCL that is installed has no ", name));
}

}  // namespace cadre::nccl
