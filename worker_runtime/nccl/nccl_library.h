// NCCL, loaded at run time. Thread safe.
#ifndef CADRE_WORKER_RUNTIME_NCCL_NCCL_LIBRARY_H_
#define CADRE_WORKER_RUNTIME_NCCL_NCCL_LIBRARY_H_

#include "cadre/result.h"

namespace cadre::nccl {

// The address of a function of NCCL's. NOT_FOUND when there is no library, or it is too old to have
// the function. The library is loaded once and stays: the one that CADRE_NCCL_LIBRARY names, else
// as OpenVendorLibrary() (cuda/vendor_library.h) looks for it.
Result<void*> NcclFunction(const char* name);

}  // namespace cadre::nccl

#endif  // CADRE_WORKER_RUNTIME_NCCL_NCCL_LIBRARY_H_
