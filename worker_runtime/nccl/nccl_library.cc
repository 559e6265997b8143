#include "worker_runtime/nccl/nccl_library.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace cadre::nccl {
namespace {

constexpr char kLibrary[] = "libnccl.so.2";

Result<void*> Load() {
  const std::vector<std::string> paths =
      NcclLibraryPaths(getenv("CADRE_NCCL_LIBRARY"), getenv("CUDA_HOME"));
  std::string first_error;
  for (const std::string& path : paths) {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return library;
    const char* const error = dlerror();
    if (first_error.empty()) first_error = error != nullptr ? error : "unknown reason";
  }
  return NotFoundError(absl::StrCat("NCCL was not found as ", absl::StrJoin(paths, ", "), " (",
                                    first_error, "); install it or name it in CADRE_NCCL_LIBRARY"));
}

}  // namespace

std::vector<std::string> NcclLibraryPaths(const char* override, const char* cuda_home) {
  // Whoever names a library does not want another one.
  if (override != nullptr && *override != '\0') return {override};
  std::vector<std::string> paths = {kLibrary};
  if (cuda_home != nullptr && *cuda_home != '\0') {
    paths.push_back(absl::StrCat(cuda_home, "/lib64/", kLibrary));
    paths.push_back(absl::StrCat(cuda_home, "/lib/", kLibrary));
  }
  paths.push_back(absl::StrCat("/usr/local/cuda/lib64/", kLibrary));
  return paths;
}

Result<void*> NcclFunction(const char* name) {
  static const auto* const library = new Result<void*>(Load());
  if (!library->ok()) return library->status();
  void* const function = dlsym(**library, name);
  if (function != nullptr) return function;
  return NotFoundError(absl::StrCat("the NCCL that is installed has no ", name));
}

}  // namespace cadre::nccl
