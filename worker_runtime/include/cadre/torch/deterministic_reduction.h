// Gradients with the same bits at any number of ranks, for runs that are to be repeated exactly:
// with 2, 4 or 8 ranks, and in an elastic job that shrinks and grows. The batch is cut into a fixed
// number of parts of one size, each of which goes through the model alone, since a matrix product
// sums in another order where the batch has another size; and the parts' gradients are added in a
// fixed tree over the parts, wherever they are. In place of DataParallel, and slower: each rank
// gets all ranks' sums, and nothing is sent while gradients are computed.
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
// What else a run must have the same: the program, its libraries and the kind of processor or GPU;
// the number of threads in which libtorch computes (cadre starts workers with OMP_NUM_THREADS=1);
// on CUDA also torch::globalContext().setDeterministicAlgorithms(). Buffers that a forward pass
// changes (batch normalisation's averages) are each rank's own.
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
  // Of a batch, each as large as the others. The world's size is at most this; where it divides it,
  // all ranks have as much to do.
  int parts = 24;
  // All ranks begin with rank 0's parameters and buffers.
  bool broadcast = true;
  // For each collective. Longer than the communicator's own timeout, whose error names the rank
  // that did not come.
  std::chrono::nanoseconds timeout = std::chrono::minutes(11);
};

// One thread. The module's parameters may be on any device; sums travel through the host.
class DeterministicReduction {
 public:
  // Collective. The module's type and device stay as they are afterwards; `communicator` must
  // outlive it.
  //   INVALID_ARGUMENT  fewer parts than ranks, or another number than another rank's; the ranks'
  //                     parameters differ, which names one of them; a parameter is sparse or of no
  //                     floating type
  static Result<std::unique_ptr<DeterministicReduction>> Create(
      const torch::nn::Module& module, Communicator& communicator,
      DeterministicReductionOptions options = {});

  // Which are this rank's, to be gone through in order.
  PartRange parts() const { return mine_; }

  // After the backward pass of the next part: takes its gradients, so that the parameters have
  // none.
  //   FAILED_PRECONDITION  this rank has no more parts
  //   INVALID_ARGUMENT     a gradient is sparse
  Status Take();

  // Collective, after the last part. Each parameter's gradient is the average over all parts then,
  // as it is of the loss's mean over the whole batch; none where no part has one. 16-bit gradients
  // are added in 32 bits.
  //   FAILED_PRECONDITION  parts are missing
  //   else as collectives  DEADLINE_EXCEEDED, ABORTED, ...; the communicator is aborted then
  Status Finish();

 private:
  // Parameters of one device that are summed in one type, behind one another.
  struct Group {
    std::vector<size_t> parameters;
    int64_t elements = 0;
    torch::TensorOptions options;
  };
  using Flats = std::vector<torch::Tensor>;  // of each group

  DeterministicReduction(Communicator& communicator, NamedTensors trained,
                         const DeterministicReductionOptions& options);

  Status CheckOptions();
  Status Begin(const torch::nn::Module& module);
  Status TakeAll();
  // All ranks' sums of elements `begin` to `end` - 1 of a group become one.
  Status Combine(size_t group, int64_t begin, int64_t end);
  Status FinishAll();
  void GiveBack();

  Communicator& communicator_;
  const NamedTensors trained_;
  const DeterministicReductionOptions options_;
  const PartRange mine_;
  std::vector<Group> groups_;
  TreeSum<Flats> sums_;
  // Of all ranks, behind one another, when all parts are there.
  std::vector<PartRange> nodes_;
  std::vector<size_t> nodes_of_rank_;
  int taken_ = 0;
  std::vector<int32_t> used_;
  Flats averages_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_DETERMINISTIC_REDUCTION_H_
