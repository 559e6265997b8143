// Shards an optimizer's state over the ranks (ZeRO's stage 1, arXiv 1910.02054): each rank keeps
// the optimizer state of its share of the parameters only, steps those and sends them to the
// others. After FairScale's OSS and PyTorch's ZeroRedundancyOptimizer.
//
//   torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(1e-3));
//   CADRE_ASSIGN_OR_RETURN(auto optimizer,
//                          cadre::nn::ShardedOptimizer::Create(*net, adam, communicator));
//   ... CADRE_RETURN_IF_ERROR(model->Finish().status());   // of DataParallel
//   CADRE_RETURN_IF_ERROR(optimizer->Step());
//
// If gradients are not reduced (by DataParallel, or ShardedDataParallel for stage 2), owners step
// with their own rank's gradients.
#ifndef CADRE_TORCH_SHARDED_OPTIMIZER_H_
#define CADRE_TORCH_SHARDED_OPTIMIZER_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/torch/device_stream.h"
#include "cadre/torch/tensors.h"
#include "cadre/work.h"
#include "torch/nn/module.h"
#include "torch/optim/optimizer.h"
#include "torch/serialize/archive.h"
#include "torch/types.h"

namespace cadre::nn {

class DeviceLinks;

struct ShardedOptimizerOptions {
  // Limits each collective. Longer than the communicator's own timeout, whose error names the
  // missing rank.
  std::chrono::nanoseconds timeout = std::chrono::minutes(11);
  // Rank 0's parameters are copied to all ranks at construction.
  bool broadcast_parameters = true;
  // Connects the ranks' devices, so that parameters there are sent without the host; null: not at
  // all.
  ConnectDevice connect_device = ConnectByNccl;
};

// Assigns an owner to each parameter: from the largest to the smallest, each goes to the rank with
// the fewest bytes so far, the lowest rank among equals. Pure, so that all ranks agree.
std::vector<int> OwnersBySize(const std::vector<size_t>& bytes, int ranks);

// Used by one thread. Optimizer and communicator must outlive it; the module need not. Step(),
// ClipGradNorm() and SaveState() are collective: all ranks call them in the same order, and the
// communicator must not be used otherwise meanwhile. After an error in one of these the
// communicator is aborted and every later call returns that error.
//
// The optimizer's groups are unchanged: set learning rates there, directly or by a libtorch
// scheduler, on all ranks alike. Its own step() must not be called.
class ShardedOptimizer {
 public:
  // Collective: compares the parameters, their groups and the optimizer's kind with rank 0's.
  //   INVALID_ARGUMENT  naming the parameter and the rank: the ranks differ; the optimizer has a
  //                     parameter that is not the module's, or one twice; it is LBFGS, which steps
  //                     all parameters together
  static Result<std::unique_ptr<ShardedOptimizer>> Create(const torch::nn::Module& module,
                                                          torch::optim::Optimizer& optimizer,
                                                          Communicator& communicator,
                                                          ShardedOptimizerOptions options = {});
  // Waits until the other ranks' devices have received what this one sent them.
  ~ShardedOptimizer();
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  // Steps this rank's parameters, then sends each owner's values to all ranks: on the host they
  // have arrived on return; on connected devices they are visible to later work on the calling
  // thread's current streams, and a failed exchange is reported by a later call.
  // FAILED_PRECONDITION, naming the parameter and the rank: the parameter was given other storage,
  // or was frozen or unfrozen; the optimizer's groups changed; or the optimizer stepped by itself,
  // which is detected if it leaves a state behind (SGD does with momentum).
  Status Step();
  // Call in place of a Step() that all ranks leave out because their gradients overflowed
  // (ShardedGradScaler): nothing changes, and these gradients count as used. Not collective.
  Status SkipStep();
  // Clears the gradients.
  void ZeroGrad();
  // Scales this rank's gradients so that the norm of all parameters' gradients together is at most
  // `max_norm`, and returns the norm before that. Each owner contributes its share, so gradients
  // need not exist elsewhere. `norm_type` is more than 0; infinity is the largest magnitude. Waits
  // for devices. Like torch::nn::utils::clip_grad_norm_, it also applies the factor that results
  // from a norm that is not finite.
  Result<double> ClipGradNorm(double max_norm, double norm_type = 2);

  // Consolidates: the recipient's `archive` gets what the optimizer's own save() would write had it
  // never been sharded, with tensors on the host, and the parameters' names; those of the other
  // ranks are unchanged. The recipient holds the whole state in memory meanwhile.
  Status SaveState(torch::serialize::OutputArchive& archive, int recipient = 0);
  // Not collective; all ranks load the same state, saved by any number of ranks, or by an optimizer
  // that was not sharded. Each keeps what it owns. Groups' options are loaded if libtorch's load()
  // does so, from 2.x on.
  //   INVALID_ARGUMENT  naming the parameter and the rank: a state of another model or another kind
  //                     of optimizer. The current state is then unchanged.
  Status LoadState(torch::serialize::InputArchive& archive);

  // Sets a check that is called before each step and fails if the gradients are not those of all
  // ranks; used by ShardedDataParallel. Null: no check.
  void set_before_step(std::function<Status()> check) { before_step_ = std::move(check); }

  torch::optim::Optimizer& optimizer() { return optimizer_; }
  Communicator& communicator() const { return communicator_; }
  // The rank that owns a parameter of the optimizer; -1 if the optimizer does not have it.
  int OwnerOf(const torch::Tensor& parameter) const;
  // The bytes of the tensors of this rank's state; for libtorch's own optimizers only.
  size_t state_bytes() const;

 private:
  // A parameter, as it was at construction.
  struct Place {
    std::string name;
    torch::Tensor tensor;
    const void* storage = nullptr;
    bool trained = false;
    size_t group = 0;
    int owner = 0;
  };

  ShardedOptimizer(torch::optim::Optimizer& optimizer, Communicator& communicator,
                   ShardedOptimizerOptions options);

  Status AddPlaces(const torch::nn::Module& module);
  Status Begin();
  Status Send(const std::vector<RootedTensor>& tensors);
  Status CheckSameOnAllRanks();
  Status CheckUnchanged() const;
  Status CheckParameter(const Place& place, const torch::Tensor& now) const;
  void StepOwn();
  bool IsMine(const Place& place) const;
  // The beginning of error messages, which names this rank.
  std::string Mine() const;

  bool HasState(const Place& place) const;
  // Drops all states except those of this rank's parameters.
  void DropOthers();
  std::string OwnState();
  Status Consolidate(const std::vector<size_t>& sizes, size_t states,
                     torch::serialize::OutputArchive& archive);
  std::vector<std::string> Names() const;
  Status CheckStates() const;

  Status Fail(const Status& status);

  torch::optim::Optimizer& optimizer_;
  Communicator& communicator_;
  const ShardedOptimizerOptions options_;
  std::string kind_;
  // In the order of the groups.
  std::vector<Place> places_;
  std::unique_ptr<DeviceLinks> links_;
  // The exchanges between devices since the last call.
  std::vector<std::shared_ptr<Work>> under_way_;
  std::function<Status()> before_step_;
  Status failure_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_SHARDED_OPTIMIZER_H_
