// Training whose parameters are sharded, too (ZeRO's stage 3): each rank keeps an even part of
// every parameter, gradient and optimizer state; a unit's whole parameters are on a rank only while
// it runs. After PyTorch's FSDP.
//
//   CADRE_ASSIGN_OR_RETURN(auto model, cadre::nn::FullySharded<NetImpl>::Create(
//                                          net.ptr(), {"blocks.0", "blocks.1"}, communicator));
//   torch::optim::Adam adam(model->shards(), torch::optim::AdamOptions(1e-3));
//   loss(model->forward(images), labels).backward();
//   CADRE_RETURN_IF_ERROR(model->Finish());
//   CADRE_RETURN_IF_ERROR(model->Step(adam));
//   model->ZeroGrad();
//
// The module's forward() calls its units by CallUnit (sharded_unit.h). Parameters that are in none
// of the units named make up the root unit, which is there from the model's forward pass to the end
// of its backward pass.
#ifndef CADRE_TORCH_FULLY_SHARDED_H_
#define CADRE_TORCH_FULLY_SHARDED_H_

#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cadre/result.h"
#include "cadre/status_macros.h"
#include "cadre/torch/fully_sharded/fully_sharded_parts.h"
#include "cadre/torch/fully_sharded/fully_sharded_units.h"
#include "cadre/torch/sharded_unit.h"

namespace cadre::nn {

// One thread. The communicator, and that of the replicas in hybrid sharding (hybrid_sharding.h),
// must outlive it, and nobody else may use them between forward() and Finish(). Every call that is
// collective, each forward and backward pass among them, is made on all ranks in the same order,
// with the same units in the same order; evaluation, too. It must outlive the graphs of its forward
// passes, which are gone through once. After an error the communicators are aborted and every later
// call returns that error.
//
// Between passes, and outside their unit's own, parameters of the module are empty (their shape is
// {0}). After this object has gone they stay so: save the state first.
template <typename Module>
class FullySharded {
 public:
  // Collective: compares the parameters and their units with rank 0's, copies rank 0's values to
  // all ranks and keeps a part of each. `units` are names of submodules ("blocks.0"), also one
  // within another: a parameter belongs to the innermost.
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

  // Throws what the module throws; where that comes of a mistake that Finish() would tell, what
  // Finish() would.
  template <typename... Args>
  auto forward(Args&&... args) {
    try {
      return CallUnit(*module_, std::forward<Args>(args)...);
    } catch (const std::exception&) {
      if (units_->failure().ok()) throw;
      throw std::runtime_error(std::string(units_->failure().message()));
    }
  }

  // One flat tensor for each unit and type, of this rank's part: what the optimizer is made over.
  // Groups by parameter are not possible.
  std::vector<torch::Tensor> shards() const { return parts_.shards(); }

  // After backward(): the shards have the average gradient of all ranks, added to what they had. On
  // devices for what the calling thread's current stream is given next; that an exchange between
  // devices failed may be told by a later call. On an error they must not be used.
  //   FAILED_PRECONDITION  there was no backward pass
  //   INVALID_ARGUMENT     naming the parameter and the rank: it was used outside its unit
  Status Finish() { return units_->Finish(); }

  // optimizer.step().
  //   INVALID_ARGUMENT     naming the parameter and the rank: the optimizer was made before the
  //                        model was sharded, or is another model's
  //   FAILED_PRECONDITION  no gradients were averaged since the last step
  Status Step(torch::optim::Optimizer& optimizer) { return parts_.Step(optimizer); }
  // In the place of a Step() that all ranks leave out, since their gradients overflowed
  // (ShardedGradScaler): nothing changes, and these gradients count as used. FAILED_PRECONDITION as
  // above.
  Status SkipStep() { return parts_.SkipStep(); }
  // Forgets the gradients, and what a backward pass that threw on all ranks alike had sent, whose
  // end it waits for.
  void ZeroGrad() { parts_.ZeroGrad(); }
  // Collective, between Finish() and Step(): as torch::nn::utils::clip_grad_norm_ of the whole
  // model. `norm_type`: more than 0; infinity is the largest magnitude. Waits for devices.
  Result<double> ClipGradNorm(double max_norm, double norm_type = 2) {
    return parts_.ClipGradNorm(max_norm, norm_type);
  }

  // Collective: the recipient's archive gets what module->save() would write had the model never
  // been sharded, on the host; those of the others are left alone. One unit is whole at a time, but
  // the recipient comes to have all in its memory. In hybrid sharding it is a rank of the first
  // replica.
  Status SaveState(torch::serialize::OutputArchive& archive, int recipient = 0) {
    return parts_.SaveState(archive, recipient);
  }
  // Not collective; all ranks load the same, whatever the number of ranks that saved it, or one of
  // a model that was not sharded. INVALID_ARGUMENT, naming the parameter and the rank: the state is
  // of another model. What there was before stays.
  Status LoadState(torch::serialize::InputArchive& archive) { return parts_.LoadState(archive); }

  // The same of the optimizer's state: the archive is what the save() of one over the whole
  // module's parameters would write, with their names. Of libtorch's own optimizers; UNIMPLEMENTED:
  // of another. Groups' options are loaded where libtorch's load() does it, from 2.x on.
  Status SaveOptimizerState(torch::optim::Optimizer& optimizer,
                            torch::serialize::OutputArchive& archive, int recipient = 0) {
    return parts_.SaveOptimizerState(optimizer, archive, recipient);
  }
  Status LoadOptimizerState(torch::optim::Optimizer& optimizer,
                            torch::serialize::InputArchive& archive) {
    return parts_.LoadOptimizerState(optimizer, archive);
  }

  Module& module() { return *module_; }
  // For what saves and loads them (sharded_checkpoint.h).
  FullyShardedParts& parts() { return parts_; }
  // Of whole parameters that are on this rank now, and the most there were at a time.
  size_t gathered_bytes() const { return units_->gathered_bytes(); }
  size_t most_gathered_bytes() const { return units_->most_gathered_bytes(); }

  // While it lives, gradients only accumulate locally, whole: for all but the last of several
  // backward passes before one step. The forward pass must be inside.
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
  // is, to read them or, with `keep`, to change them:
  // then each rank keeps its part of what they have become. No passes meanwhile.
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
