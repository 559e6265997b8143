// --sync: DataParallel, which exchanges gradients beside the backward pass, with a communication
// hook. Includes libtorch.
#ifndef CADRE_EXAMPLES_MNIST_CNN_HOOKED_MODEL_H_
#define CADRE_EXAMPLES_MNIST_CNN_HOOKED_MODEL_H_

#include <memory>
#include <string>

#include "cadre/result.h"
#include "synchronization.h"

namespace cadre::mnist {

// Collective: rank 0's parameters become those of all ranks. `way` is fp32, fp16, bf16, partial,
// topk or threshold, else INVALID_ARGUMENT. `sparsity`, of the last two: the share of the elements
// that are sent, or the least magnitude of those that are.
Result<std::unique_ptr<Synchronization>> MakeHookedModel(const std::string& way, double sparsity,
                                                         const Replica& replica);

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_HOOKED_MODEL_H_
