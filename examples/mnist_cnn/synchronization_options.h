// Which way of synchronization.h is taken.
#ifndef CADRE_EXAMPLES_MNIST_CNN_SYNCHRONIZATION_OPTIONS_H_
#define CADRE_EXAMPLES_MNIST_CNN_SYNCHRONIZATION_OPTIONS_H_

#include <string>

namespace cadre::mnist {

struct SynchronizationOptions {
  // Through DataParallel: fp32, fp16, bf16, partial, topk or threshold; see hooked_model.h.
  std::string sync = "fp32";
  // Through DistributedOptimizer instead: see wrapped_optimizer.h. Empty: `sync` counts.
  std::string dist_option;
  // Of the sparse ways: the share of the elements that are sent, or the least magnitude of those
  // that are.
  double sparsity = 0.05;
};

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_SYNCHRONIZATION_OPTIONS_H_
