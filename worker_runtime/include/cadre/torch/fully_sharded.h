// Training with sharded parameters (ZeRO's stage 3): each rank keeps an even part of every
// parameter, gradient and optimizer state; a unit's whole parameters are on a rank only while it
// runs. After PyTorch's FSDP.
//
//   CADRE_ASSIGN_OR_RETURN(auto model, cadre::nn::FullySharded<NetImpl>::Create(
//                                          net.ptr(), {"blocks.0", "blocks.1"}, communicator));
//   torch::optim::Adam adam(model->shards(), torch::optim::AdamOptions(1e-3));
//   loss(model->forward(images), labels).backward();
//   CADRE_RETURN_IF_ERROR(model->Finish());
//   CADRE_RETURN_IF_ERROR(model->Step(adam));
//   model->ZeroGrad();
//
// The module's forward() calls its units by CallUnit (sharded_unit.h). Parameters outside the named
// units form the root unit, which is gathered from the start of the model's forward pass to the end
// of its backward pass.
#ifndef CADRE_TORCH_FULLY_SHARDED_H_
#define CADRE_TORCH_FULLY_SHARDED_H_

#include <chrono>
#include <cstddef>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/status_macros.h"
#include "cadre/torch/device_stream.h"
#include "cadre/torch/meta_device.h"
#include "cadre/torch/sharded_unit.h"
#include "torch/nn/module.h"
#include "torch/optim/optimizer.h"
#include "torch/serialize/archive.h"
#include "torch/types.h"

namespace cadre::nn {

class FlatParameter;
class ParameterWatch;
class PendingReductions;
class ShardLinks;
class UnitOrder;
struct ShardRoute;

struct FullyShardedOptions {
  // A unit's parameters are freed after its forward pass, and gathered again for its backward pass;
  // false: they stay in between. Those of the root unit always stay.
  bool reshard_after_forward = true;
  // The next unit's parameters are gathered while one runs, unless more than this many bytes would
  // be gathered at a time on a rank; a unit that runs is gathered in any case. The same on all
  // ranks.
  size_t most_gathered_bytes = std::numeric_limits<size_t>::max();
  // parameter_type is the type in which parameters are gathered and computed, such as
  // torch::kBFloat16; nullopt: their own. reduction_type is the type in which gradients are
  // averaged; nullopt: that of the computation. Shards, and so the optimizer, keep the parameters'
  // own type. The caller converts inputs.
  std::optional<torch::ScalarType> parameter_type;
  std::optional<torch::ScalarType> reduction_type;
  // Parts, their gradients and the optimizer's state are kept in host memory, where the optimizer
  // steps; a device only holds gathered parameters, one unit's gradients and activations.
  bool offload_to_host = false;
  // For a model on the meta device (meta_device.h): the device on which it gets memory, the host if
  // nullopt; and the function that sets its first values, then required, such as ResetParameters.
  std::optional<torch::Device> device;
  InitializeModule initialize;
  // Hybrid sharding (hybrid_sharding.h): the ranks that have the same part as this one, each in
  // another replica of the model. Null: there is only one replica. Must outlive the model.
  Communicator* replicas = nullptr;
  // Rank 0's parameters and buffers are copied to all ranks at construction.
  bool broadcast_parameters = true;
  // Rank 0's buffers replace those of the other ranks before each synchronized forward pass.
  bool broadcast_buffers = true;
  // Limits each collective. Longer than the communicator's own timeout, whose error names the
  // missing rank.
  std::chrono::nanoseconds timeout = std::chrono::minutes(11);
  // Connects the ranks' devices; null: not at all, and everything goes through the host.
  ConnectDevice connect_device = ConnectByNccl;
};

// The units of a FullySharded model, and when their parameters are gathered and freed, for its own
// code. Documented at FullySharded. Nothing here throws into autograd: errors are returned by the
// next Finish(), and parameters are zeros until then.
class FullyShardedUnits {
 public:
  static Result<std::unique_ptr<FullyShardedUnits>> Create(
      std::shared_ptr<torch::nn::Module> module, const std::vector<std::string>& units,
      Communicator& communicator, FullyShardedOptions options);
  ~FullyShardedUnits();
  FullyShardedUnits(const FullyShardedUnits&) = delete;
  FullyShardedUnits& operator=(const FullyShardedUnits&) = delete;

  Status Finish();
  // Call before the gradients are cleared: completes, with the other ranks, the reductions started
  // by a backward pass that ended with an exception, so that they are not added to the next step's.
  void EndReductions();
  // Whether gradients were averaged since the last call and still exist.
  bool TakeAveraged();
  // Gathers every unit's parameters, in the type of their parts, until ReleaseAll(), which stores
  // the changed values of this rank's part if `keep` is set. After ReleaseAll() this rank's parts
  // may be changed.
  Status GatherAll();
  Status ReleaseAll(bool keep);
  // Call before this rank's parts are changed in other ways: waits until devices no longer copy
  // them from the host.
  void AwaitCopies();

  void set_synchronize(bool synchronize) { synchronize_ = synchronize; }
  bool synchronize() const { return synchronize_; }
  // The first error so far.
  const Status& failure() const { return failure_; }
  // Keeps the first error, after which nothing more is sent, and returns it.
  Status Fail(const Status& status);
  // The beginning of error messages, which names this rank.
  std::string Mine() const;

  // The flat parameters of all units, in their order.
  std::vector<FlatParameter*> flats() const;
  const ShardRoute& route() const;
  // Whether this rank's replica saves the state: all replicas have the same, and the first saves
  // it.
  bool saves_state() const {
    return options_.replicas == nullptr || options_.replicas->rank() == 0;
  }
  size_t gathered_bytes() const { return gathered_bytes_; }
  size_t most_gathered_bytes() const { return most_gathered_bytes_; }

 private:
  class Unit;

  FullyShardedUnits(std::shared_ptr<torch::nn::Module> module, Communicator& communicator,
                    FullyShardedOptions options);

  Status AddUnits(const std::vector<std::string>& names);
  // Assigns each parameter to a unit.
  Status AssignParameters();
  Status CheckSameOnAllRanks();
  Status Begin();
  // For a model on the meta device.
  Status Initialize();

  // Called as the units run, forward and backward.
  void BeforeForward(Unit& unit);
  void AfterForward(Unit& unit);
  torch::Tensor Enter(Unit& unit, const torch::Tensor& input);
  void Leave(Unit& unit, const torch::Tensor& output);
  void BeforeBackward(Unit& unit);
  void AfterBackward(Unit& unit);
  void OnBackwardEnd();

  void BeginPass();
  // Reports parameters that were used outside their units.
  Status EndWatch();
  void Start(Unit& unit);
  // Gathers the unit if it is not gathered.
  void Require(Unit& unit);
  void Prefetch(Unit* unit);
  void Release(Unit& unit);
  void Reduce(Unit& unit);

  const std::shared_ptr<torch::nn::Module> module_;
  const FullyShardedOptions options_;
  std::unique_ptr<ShardLinks> links_;
  // The model's device, or the one on which it gets memory.
  torch::Device device_ = torch::kCPU;
  bool on_meta_ = false;
  // The root first, the others in the model's order.
  std::vector<std::unique_ptr<Unit>> units_;
  // The last unit that started in the current pass.
  Unit* last_ = nullptr;
  std::unique_ptr<UnitOrder> order_;
  std::unique_ptr<PendingReductions> reductions_;
  size_t gathered_bytes_ = 0;
  size_t most_gathered_bytes_ = 0;

  bool synchronize_ = true;
  // Whether the last forward pass was synchronized.
  bool pass_synchronized_ = true;
  bool end_queued_ = false;
  // Whether a backward pass has ended since the last Finish().
  bool backward_ended_ = false;
  // Whether gradients were averaged since the last TakeAveraged().
  bool averaged_ = false;
  bool watched_ = false;
  std::unique_ptr<ParameterWatch> watch_;
  Status failure_;
};

// This rank's parts of a FullySharded model between its passes, for optimizers and checkpoints, for
// its own code. Documented at FullySharded. The units must outlive it.
class FullyShardedParts {
 public:
  FullyShardedParts(std::shared_ptr<torch::nn::Module> module, FullyShardedUnits* units);

  std::vector<torch::Tensor> shards() const;
  Status Step(torch::optim::Optimizer& optimizer);
  Status SkipStep();
  void ZeroGrad();
  Result<double> ClipGradNorm(double max_norm, double norm_type);

  Status SaveState(torch::serialize::OutputArchive& archive, int recipient);
  Status LoadState(torch::serialize::InputArchive& archive);
  Status SaveOptimizerState(torch::optim::Optimizer& optimizer,
                            torch::serialize::OutputArchive& archive, int recipient);
  Status LoadOptimizerState(torch::optim::Optimizer& optimizer,
                            torch::serialize::InputArchive& archive);

  // INVALID_ARGUMENT, naming the parameter and the rank: the optimizer is not over shards().
  Status CheckOptimizer(const torch::optim::Optimizer& optimizer) const;
  torch::nn::Module& module() const { return *module_; }
  FullyShardedUnits& units() const { return units_; }
  // In the order of the units.
  const std::vector<FlatParameter*>& flats() const { return flats_; }

 private:
  Status CheckRecipient(int recipient) const;
  Status TakeAveraged();

  const std::shared_ptr<torch::nn::Module> module_;
  FullyShardedUnits& units_;
  Communicator& communicator_;
  const std::vector<FlatParameter*> flats_;
};

// Used by one thread. The communicator, and that of the replicas in hybrid sharding
// (hybrid_sharding.h), must outlive it, and must not be used otherwise between forward() and
// Finish(). All ranks make every collective call, including each forward and backward pass and
// evaluation, in the same order, with the same units in the same order. It must outlive the graphs
// of its forward passes, each of which supports one backward pass. After an error the communicators
// are aborted and every later call returns that error.
//
// Between passes, and outside their own unit's, parameters of the module are empty (their shape is
// {0}). They stay so after this object is destroyed: save the state first.
template <typename Module>
class FullySharded {
 public:
  // Collective: compares the parameters and their units with rank 0's, copies rank 0's values to
  // all ranks and keeps a part of each. `units` are names of submodules ("blocks.0"), which may be
  // nested: a parameter belongs to the innermost.
  //   INVALID_ARGUMENT  naming the parameter and the rank: the ranks differ; a parameter is shared
  //                     by two units, of no floating type, or on another device than the others;
  //                     there is no submodule of a name; options.replicas does not fit; the
  //                     module is null, or the timeout not more than zero
  //   FAILED_PRECONDITION  the module is sharded already
  static Result<std::unique_ptr<FullySharded>> Create(std::shared_ptr<Module> module,
                                                      const std::vector<std::string>& units,
                                                      Communicator& communicator,
                                                      FullyShardedOptions options = {}) {
    CADRE_ASSIGN_OR_RETURN(
        auto sharded, FullyShardedUnits::Create(module, units, communicator, std::move(options)));
    return std::unique_ptr<FullySharded>(new FullySharded(std::move(module), std::move(sharded)));
  }

  // Throws what the module throws; if the cause is an error that Finish() would return, throws that
  // error's message.
  template <typename... Args>
  auto forward(Args&&... args) {
    try {
      return CallUnit(*module_, std::forward<Args>(args)...);
    } catch (const std::exception&) {
      if (units_->failure().ok()) throw;
      throw std::runtime_error(std::string(units_->failure().message()));
    }
  }

  // This rank's part as one flat tensor per unit and type; the optimizer must be created over
  // these. Optimizer groups by parameter are not possible.
  std::vector<torch::Tensor> shards() const { return parts_.shards(); }

  // Call after backward(): averages the gradients over all ranks and adds them to those of the
  // shards. On devices the result is visible to later work on the calling thread's current stream;
  // an exchange between devices that failed may be reported by a later call. On an error the
  // gradients must not be used.
  //   FAILED_PRECONDITION  there was no backward pass
  //   INVALID_ARGUMENT     naming the parameter and the rank: it was used outside its unit
  Status Finish() { return units_->Finish(); }

  // Calls optimizer.step().
  //   INVALID_ARGUMENT     naming the parameter and the rank: the optimizer was made before the
  //                        model was sharded, or is another model's
  //   FAILED_PRECONDITION  no gradients were averaged since the last step
  Status Step(torch::optim::Optimizer& optimizer) { return parts_.Step(optimizer); }
  // Call in place of a Step() that all ranks leave out because their gradients overflowed
  // (ShardedGradScaler): nothing changes, and these gradients count as used. FAILED_PRECONDITION as
  // above.
  Status SkipStep() { return parts_.SkipStep(); }
  // Clears the gradients, and the reductions started by a backward pass that threw on all ranks
  // alike, after waiting for them.
  void ZeroGrad() { parts_.ZeroGrad(); }
  // Collective, between Finish() and Step(): like torch::nn::utils::clip_grad_norm_ over the whole
  // model. `norm_type` is more than 0; infinity is the largest magnitude. Waits for devices.
  Result<double> ClipGradNorm(double max_norm, double norm_type = 2) {
    return parts_.ClipGradNorm(max_norm, norm_type);
  }

  // Collective: the recipient's archive gets what module->save() would write had the model never
  // been sharded, on the host; those of the other ranks are unchanged. One unit is gathered at a
  // time, but the recipient finally holds all of them in memory. In hybrid sharding it must be a
  // rank of the first replica.
  Status SaveState(torch::serialize::OutputArchive& archive, int recipient = 0) {
    return parts_.SaveState(archive, recipient);
  }
  // Not collective; all ranks load the same state, saved by any number of ranks, or from a model
  // that was not sharded. INVALID_ARGUMENT, naming the parameter and the rank: the state is of
  // another model, and the current state is unchanged.
  Status LoadState(torch::serialize::InputArchive& archive) { return parts_.LoadState(archive); }

  // Likewise for the optimizer's state: the archive is what save() of an optimizer over the whole
  // module's parameters would write, with their names. For libtorch's own optimizers; others are
  // UNIMPLEMENTED. Groups' options are loaded if libtorch's load() does so, from 2.x on.
  Status SaveOptimizerState(torch::optim::Optimizer& optimizer,
                            torch::serialize::OutputArchive& archive, int recipient = 0) {
    return parts_.SaveOptimizerState(optimizer, archive, recipient);
  }
  Status LoadOptimizerState(torch::optim::Optimizer& optimizer,
                            torch::serialize::InputArchive& archive) {
    return parts_.LoadOptimizerState(optimizer, archive);
  }

  Module& module() { return *module_; }
  // Used by sharded_checkpoint.h.
  FullyShardedParts& parts() { return parts_; }
  // The bytes of whole parameters that are on this rank now, and the maximum so far.
  size_t gathered_bytes() const { return units_->gathered_bytes(); }
  size_t most_gathered_bytes() const { return units_->most_gathered_bytes(); }

  // While it lives, gradients only accumulate locally, unsharded; use it for all but the last of
  // several backward passes before one step. The forward pass must be inside its scope, too.
  class NoSync {
   public:
    explicit NoSync(FullySharded& model) : units_(*model.units_), before_(units_.synchronize()) {
      units_.set_synchronize(false);
    }
    ~NoSync() { units_.set_synchronize(before_); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    FullyShardedUnits& units_;
    const bool before_;
  };

  // While it lives, every rank has all parameters, in the model's own type whatever parameter_type
  // is, to read them or, with `keep`, to change them: each rank then keeps its part of the changed
  // values. No passes may run meanwhile.
  class FullParameters {
   public:
    // Collective.
    static Result<std::unique_ptr<FullParameters>> Gather(FullySharded& model, bool keep = false) {
      CADRE_RETURN_IF_ERROR(model.units_->GatherAll());
      return std::unique_ptr<FullParameters>(new FullParameters(model, keep));
    }
    ~FullParameters() { (void)units_.ReleaseAll(keep_); }
    FullParameters(const FullParameters&) = delete;
    FullParameters& operator=(const FullParameters&) = delete;

   private:
    FullParameters(FullySharded& model, bool keep) : units_(*model.units_), keep_(keep) {}

    FullyShardedUnits& units_;
    const bool keep_;
  };

 private:
  FullySharded(std::shared_ptr<Module> module, std::unique_ptr<FullyShardedUnits> units)
      : module_(std::move(module)), units_(std::move(units)), parts_(module_, units_.get()) {}

  const std::shared_ptr<Module> module_;
  const std::unique_ptr<FullyShardedUnits> units_;
  FullyShardedParts parts_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_FULLY_SHARDED_H_
