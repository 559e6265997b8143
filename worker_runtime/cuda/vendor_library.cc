#include "worker_runtime/cuda/vendor_library.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cadre::cuda {
namespace {

constexpr int kMode = RTLD_NOW | RTLD_LOCAL;

bool IsGiven(const char* text) { return text != nullptr && *text != '\0'; }

}  // namespace

std::vector<std::string> PathsOf(const VendorLibrary& library, const char* override,
                                 const char* cuda_home) {
  // Whoever names a library does not want another one.
  if (IsGiven(override)) return {override};
  std::vector<std::string> folders = {""};
  if (IsGiven(cuda_home)) {
    folders.push_back(absl::StrCat(cuda_home, "/lib64/"));
    folders.push_back(absl::StrCat(cuda_home, "/lib/"));
  }
  folders.push_back("/usr/local/cuda/lib64/");
  std::vector<std::string> paths;
  for (const std::string& folder : folders) {
    for (const std::string& name : library.names) paths.push_back(absl::StrCat(folder, name));
  }
  return paths;
}

Result<void*> OpenVendorLibrary(const VendorLibrary& library) {
  const char* const override = getenv(library.variable);
  for (const std::string& name : library.names) {
    if (IsGiven(override)) break;
    // A training program brings its own, and two versions in one process would not share it.
    void* const loaded = dlopen(name.c_str(), kMode | RTLD_NOLOAD);
    if (loaded != nullptr) return loaded;
  }
  const std::vector<std::string> paths = PathsOf(library, override, getenv("CUDA_HOME"));
  std::string first_error;
  for (const std::string& path : paths) {
    void* const opened = dlopen(path.c_str(), kMode);
    if (opened != nullptr) return opened;
    const char* const error = dlerror();
    if (first_error.empty()) first_error = error != nullptr ? error : "unknown reason";
  }
  return NotFoundError(absl::StrCat(library.what, " was not found as ", absl::StrJoin(paths, ", "),
                                    " (", first_error, "); install it or name it in ",
                                    library.variable));
}

}  // namespace cadre::cuda
