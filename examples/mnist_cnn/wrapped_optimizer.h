// --dist_option: DistributedOptimizer, which works like SINGA's DistOpt. Includes libtorch.
// Implemented in synchronization.cc.
#ifndef CADRE_EXAMPLES_MNIST_CNN_WRAPPED_OPTIMIZER_H_
#define CADRE_EXAMPLES_MNIST_CNN_WRAPPED_OPTIMIZER_H_

#include <memory>
#include <string>

#include "cadre/result.h"
#include "synchronization.h"

namespace cadre::mnist {

// Collective: rank 0's parameters become those of all ranks. `option` is plain or fp32, half or
// fp16, partialUpdate, sparseTopK or sparseThreshold, as SINGA's programs for one and for several
// machines call them; any other fails with INVALID_ARGUMENT. `sparsity` is as in hooked_model.h.
Result<std::unique_ptr<Synchronization>> MakeWrappedOptimizer(const std::string& option,
                                                              double sparsity,
                                                              const Replica& replica);

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_WRAPPED_OPTIMIZER_H_
