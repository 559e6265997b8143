#include "synchronization.h"

#include <utility>

#include "hooked_model.h"
#include "wrapped_optimizer.h"

namespace cadre::mnist {

Result<std::unique_ptr<Synchronization>> Synchronization::Create(
    const SynchronizationOptions& options, std::shared_ptr<Net> net,
    torch::optim::Optimizer& optimizer, Communicator& communicator,
    std::chrono::nanoseconds timeout) {
  if (options.dist_option.empty()) {
    return HookedModel::Create(options, std::move(net), optimizer, communicator, timeout);
  }
  return WrappedOptimizer::Create(options, std::move(net), optimizer, communicator, timeout);
}

}  // namespace cadre::mnist
