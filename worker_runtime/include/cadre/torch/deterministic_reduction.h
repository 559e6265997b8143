// Makes gradients bitwise equal for any number of ranks, for runs that must be exactly repeatable:
// with 2, 4 or 8 ranks, and in an elastic job that shrinks and grows. The batch is cut into a fixed
// number of parts of one size. Each part goes through the model alone, since a matrix product sums
// in another order for another batch size; the parts' gradients are added in a fixed tree over the
// parts, wherever they are. It replaces DataParallel and is slower: each rank gets all ranks' sums,
// and communication does not overlap the backward pass.
//
//   CADRE_ASSIGN_OR_RETURN(auto reduction, DeterministicReduction::Create(*net, communicator));
//   for (int part = reduction->parts().begin; part < reduction->parts().end; ++part) {
//     torch::manual_seed(seed + step * 24 + part);  // where the model draws random numbers
//     loss(net->forward(images(step, part)), labels(step, part)).backward();
//     CADRE_RETURN_IF_ERROR(reduction->Take());
//   }
//   CADRE_RETURN_IF_ERROR(reduction->Finish());
//   optimizer.step();
//   optimizer.zero_grad();
//
// For equal results the runs must also have the same program, libraries and kind of processor or
// GPU; the same number of libtorch threads (cadre starts workers with OMP_NUM_THREADS=1); and on
// CUDA torch::globalContext().setDeterministicAlgorithms(). Buffers that a forward pass changes
// (batch normalization's averages) are separate on each rank.
#ifndef CADRE_TORCH_DETERMINISTIC_REDUCTION_H_
#define CADRE_TORCH_DETERMINISTIC_REDUCTION_H_

#include <chrono>
#include <memory>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/torch/summation_tree.h"
#include "cadre/torch/tensors.h"
#include "torch/nn/module.h"
#include "torch/types.h"

namespace cadre::nn {

struct DeterministicReductionOptions {
  // The number of equally large parts of a batch. The world's size is at most this; if it divides
  // it, all ranks have the same amount of work.
  int parts = 24;
  // All ranks start with rank 0's parameters and buffers.
  bool broadcast = true;
  // Limits each collective. Longer than the communicator's own timeout, whose error names the
  // missing rank.
  std::chrono::nanoseconds timeout = std::chrono::minutes(11);
};

// Used by one thread. The module's parameters may be on any device; sums are exchanged through the
// host.
class DeterministicReduction {
 public:
  // Collective. The module's type and device must not change afterwards; `communicator` must
  // outlive the result.
  //   INVALID_ARGUMENT  fewer parts than ranks, or another number than another rank's; the ranks'
  //                     parameters differ, which names one of them; a parameter is sparse or of no
  //                     floating type
  static Result<std::unique_ptr<DeterministicReduction>> Create(
      const torch::nn::Module& module, Communicator& communicator,
      DeterministicReductionOptions options = {});

  // This rank's parts, which must be processed in order.
  PartRange parts() const { return mine_; }

  // Call after the backward pass of the next part. Takes that part's gradients, and leaves the
  // parameters without any.
  //   FAILED_PRECONDITION  this rank has no more parts
  //   INVALID_ARGUMENT     a gradient is sparse
  Status Take();

  // Collective, called after the last part. Each parameter's gradient becomes the average over all
  // parts, which is the gradient of the loss's mean over the whole batch; undefined if no part has
  // one. 16-bit gradients are added in 32 bits.
  //   FAILED_PRECONDITION  parts are missing
  //   else as collectives  DEADLINE_EXCEEDED, ABORTED, ...; the communicator is aborted then
  Status Finish();

 private:
  // Parameters of one device that are summed in one type, stored one after the other.
  struct Group {
    std::vector<size_t> parameters;
    int64_t elements = 0;
    torch::TensorOptions options;
  };
  using Flats = std::vector<torch::Tensor>;  // one per group

  DeterministicReduction(Communicator& communicator, NamedTensors trained,
                         const DeterministicReductionOptions& options);

  Status CheckOptions();
  Status Begin(const torch::nn::Module& module);
  Status TakeAll();
  // Combines all ranks' sums of elements `begin` to `end` - 1 of a group.
  Status Combine(size_t group, int64_t begin, int64_t end);
  Status FinishAll();
  void GiveBack();

  Communicator& communicator_;
  const NamedTensors trained_;
  const DeterministicReductionOptions options_;
  const PartRange mine_;
  std::vector<Group> groups_;
  TreeSum<Flats> sums_;
  // The tree nodes of all ranks, in order, once all parts are taken.
  std::vector<PartRange> nodes_;
  std::vector<size_t> nodes_of_rank_;
  int taken_ = 0;
  std::vector<int32_t> used_;
  Flats averages_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_DETERMINISTIC_REDUCTION_H_
