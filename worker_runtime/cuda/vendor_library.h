// NVIDIA's libraries, loaded at run time: a program that uses them starts without them. Thread
// safe.
#ifndef CADRE_WORKER_RUNTIME_CUDA_VENDOR_LIBRARY_H_
#define CADRE_WORKER_RUNTIME_CUDA_VENDOR_LIBRARY_H_

#include <string>
#include <vector>

#include "cadre/result.h"

namespace cadre::cuda {

struct VendorLibrary {
  // As errors call it: "NCCL".
  const char* what;
  // The environment's variable that names the file.
  const char* variable;
  // Sonames, the preferred one first.
  std::vector<std::string> names;
};

// Where the library is looked for, in this order. `override` and `cuda_home` may be null.
std::vector<std::string> PathsOf(const VendorLibrary& library, const char* override,
                                 const char* cuda_home);

// Opens it, for good: the file that its variable names; else the one that this process has loaded
// already, whichever of its names that has; else the first that there is. NOT_FOUND: there is none,
// saying where it was looked for.
Result<void*> OpenVendorLibrary(const VendorLibrary& library);

}  // namespace cadre::cuda

#endif  // CADRE_WORKER_RUNTIME_CUDA_VENDOR_LIBRARY_H_
