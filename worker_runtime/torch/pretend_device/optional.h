// The optional type of libtorch's own interfaces: std::optional since libtorch 2, else c10's.
#ifndef CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_OPTIONAL_H_
#define CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_OPTIONAL_H_

#include "torch/version.h"
#if TORCH_VERSION_MAJOR >= 2
#include <optional>
#else
#include "c10/util/Optional.h"
#endif

namespace cadre::pretend {

#if TORCH_VERSION_MAJOR >= 2
template <typename T>
using Optional = std::optional<T>;
#else
template <typename T>
using Optional = c10::optional<T>;
#endif

}  // namespace cadre::pretend

#endif  // CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_OPTIONAL_H_
