// NCCL, loaded at run time. Thread safe.
#ifndef CADRE_WORKER_RUNTIME_NCCL_NCCL_LIBRARY_H_
#define CADRE_WORKER_RUNTIME_NCCL_NCCL_LIBRARY_H_

#include <string>
#include <vector>

#include "cadre/result.h"

namespace cadre::nccl {

// Where the library is looked for, in this order. `override` and `cuda_home` may be null.
std::vector<std::string> NcclLibraryPaths(const char* override, const char* cuda_home);

// The address of a function of NCCL's. NOT_FOUND when there is no library, or it is too old to have
// the function. The library is loaded once and stays.
Result<void*> NcclFunction(const char* name);

}  // namespace cadre::nccl

#endif  // CADRE_WORKER_RUNTIME_NCCL_NCCL_LIBRARY_H_
