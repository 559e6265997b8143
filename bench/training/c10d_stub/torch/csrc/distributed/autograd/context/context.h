// Debian's libtorch-dev leaves this header out although c10d's reducer.hpp includes it; this is all
// that the reducer uses of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace torch::distributed::autograd {
class DistAutogradContext {
 public:
  using GradCallback = std::function<bool(at::Tensor&)>;
};
using ContextPtr = std::shared_ptr<DistAutogradContext>;
}  // namespace torch::distributed::autograd
