// Shards an optimizer's state over the ranks (ZeRO's stage 1, arXiv 1910.02054): each rank keeps
// the state of its share of the parameters alone, steps those and sends them to the others. After
// FairScale's OSS and PyTorch's ZeroRedundancyOptimizer.
//
//   torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(1e-3));
//   CADRE_ASSIGN_OR_RETURN(auto optimizer,
//                          cadre::nn::ShardedOptimizer::Create(*net, adam, communicator));
//   ... CADRE_RETURN_IF_ERROR(model->Finish().status());   // of DataParallel
//   CADRE_RETURN_IF_ERROR(optimizer->Step());
//
// Where nothing is reduced (DataParallel, or ShardedDataParallel for stage 2), owners step with
// gradients of their own.
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
#include "cadre/torch/device_links.h"
#include "cadre/torch/tensors.h"
#include "cadre/work.h"
#include "torch/nn/module.h"
#include "torch/optim/optimizer.h"
#include "torch/serialize/archive.h"
#include "torch/types.h"

namespace cadre::nn {

struct ShardedOptimizerOptions {
  // For each collective. Longer than the communicator's own timeout, whose error names the rank
  // that did not come.
  std::chrono::nanoseconds timeout = std::chrono::minutes(11);
  // Rank 0's parameters are copied to all ranks at construction.
  bool broadcast_parameters = true;
  // How the ranks' devices are connected, so that parameters there are sent without the host; null:
  // not at all.
  ConnectDevice connect_device = ConnectByNccl;
};

// Who owns what: from the largest to the smallest, each goes to the rank that has the least so far,
// of equal ones the first. Pure, so that all ranks agree.
std::vector<int> OwnersBySize(const std::vector<size_t>& bytes, int ranks);

// One thread. Optimizer and communicator must outlive it; the module need not. Step(),
// ClipGradNorm() and SaveState() are collective: all ranks call them in the same order, and nobody
// else uses the communicator meanwhile. After an error of one of these the communicator is aborted
// and every later call returns that error.
//
// The optimizer's groups stay as they are: learning rates are changed there, by hand or by a
// scheduler of libtorch's, on all ranks alike. Its own step() must not be called.
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
  // Waits until the other ranks' devices have what this one sent them.
  ~ShardedOptimizer();
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  // Steps this rank's parameters, then each owner's values go to all ranks: on the host on return,
  // on connected devices for what the calling thread's current streams are given next.
  // That a device's exchange failed is told by a later call.
  // FAILED_PRECONDITION, naming the parameter and the rank: it was given other storage, or was
  // frozen or thawed, or the optimizer's groups changed, or it stepped itself, where that leaves a
  // state behind (as of SGD it does with momentum).
  Status Step();
  // In the place of a Step() that all ranks leave out, since their gradients overflowed
  // (ShardedGradScaler): nothing changes, and these gradients count as used. Not collective.
  Status SkipStep();
  // Forgets the gradients.
  void ZeroGrad();
  // Scales this rank's gradients so that the norm of those of all parameters together is at most
  // `max_norm`, and returns what it was: each owner counts its share, so gradients need be nowhere
  // else. `norm_type`: more than 0; infinity is the largest magnitude. Waits for devices. As
  // torch::nn::utils::clip_grad_norm_, a norm that is not finite scales by what it makes of that.
  Result<double> ClipGradNorm(double max_norm, double norm_type = 2);

  // Consolidates: `archive` of the recipient gets what the optimizer's own save() would write had
  // it never been sharded, with tensors on the host, and the parameters' names; those of the others
  // are left alone. Meanwhile the recipient has all state in its memory.
  Status SaveState(torch::serialize::OutputArchive& archive, int recipient = 0);
  // Not collective; all ranks load the same, whatever the number of ranks that saved it, or one of
  // an optimizer that was not sharded. Each keeps what it owns. Groups' options are loaded where
  // libtorch's load() does it, from 2.x on.
  //   INVALID_ARGUMENT  naming the parameter and the rank: a state of another model or another kind
  //                     of optimizer. What there was before stays.
  Status LoadState(torch::serialize::InputArchive& archive);

  // What says, before each step, whether the gradients are those of all ranks;
  // ShardedDataParallel's. Null: nobody knows.
  void set_before_step(std::function<Status()> check) { before_step_ = std::move(check); }

  torch::optim::Optimizer& optimizer() { return optimizer_; }
  Communicator& communicator() const { return communicator_; }
  // Of a parameter of the optimizer's; -1: it has no such.
  int OwnerOf(const torch::Tensor& parameter) const;
  // Bytes of the tensors of this rank's state, of libtorch's own optimizers.
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
  // What an error begins with.
  std::string Mine() const;

  bool HasState(const Place& place) const;
  // All states but those of this rank's parameters.
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
  // To and from other devices, since the last call.
  std::vector<std::shared_ptr<Work>> under_way_;
  std::function<Status()> before_step_;
  Status failure_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_SHARDED_OPTIMIZER_H_
