// --sync: DataParallel with a communication hook; it exchanges gradients during the backward pass.
// Includes libtorch.
// Implemented in synchronization.cc.
#ifndef CADRE_EXAMPLES_MNIST_CNN_HOOKED_MODEL_H_
#define CADRE_EXAMPLES_MNIST_CNN_HOOKED_MODEL_H_

#include <memory>
#include <string>

#include "cadre/result.h"
#include "synchronization.h"

namespace cadre::mnist {

// Collective: rank 0's parameters become those of all ranks. `way` is fp32, fp16, bf16, partial,
// topk or threshold; any other fails with INVALID_ARGUMENT. `sparsity` is, for topk, the share of
// the elements that are sent and, for threshold, the least magnitude of those that are.
Result<std::unique_ptr<Synchronization>> MakeHookedModel(const std::string& way, double sparsity,
                                                         const Replica& replica);

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_HOOKED_MODEL_H_
