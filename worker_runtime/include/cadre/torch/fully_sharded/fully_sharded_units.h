// The units of a FullySharded model and when their parameters are gathered and given back: what
// FullySharded is made of.
#ifndef CADRE_TORCH_FULLY_SHARDED_FULLY_SHARDED_UNITS_H_
#define CADRE_TORCH_FULLY_SHARDED_FULLY_SHARDED_UNITS_H_

#include <chrono>
#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/torch/device_links.h"
#include "cadre/torch/fully_sharded/flat_parameter.h"
#include "cadre/torch/fully_sharded/parameter_watch.h"
#include "cadre/torch/fully_sharded/reductions_under_way.h"
#include "cadre/torch/fully_sharded/shard_links.h"
#include "cadre/torch/fully_sharded/unit_order.h"
#include "cadre/torch/meta_device.h"
#include "torch/nn/module.h"
#include "torch/types.h"

namespace cadre::nn {

struct FullyShardedOptions {
  // A unit's parameters are given back after its forward pass, and gathered again for its backward
  // pass; false: they stay in between. Those of the root unit always stay.
  bool reshard_after_forward = true;
  // The next unit's parameters are gathered while one runs, unless more bytes than this would be
  // gathered at a time on a rank; what a unit needs now is gathered in any case. The same on all
  // ranks.
  size_t most_gathered_bytes = std::numeric_limits<size_t>::max();
  // What parameters are gathered and computed in, torch::kBFloat16 say; nullopt: their own type.
  // And what gradients are averaged in; nullopt: what they are computed in. Shards, and so the
  // optimizer, stay in the parameters' own type. Inputs are the caller's to convert.
  std::optional<torch::ScalarType> parameter_type;
  std::optional<torch::ScalarType> reduction_type;
  // Parts, their gradients and so the optimizer's state stay in the host's memory, where the
  // optimizer steps; a device has what is gathered, one unit's gradients and what is between.
  bool offload_to_host = false;
  // Of a model on the meta device (meta_device.h): where it gets memory; nullopt: on the host. And
  // what gives it its first values, which must be there: ResetParameters, say.
  std::optional<torch::Device> device;
  InitializeModule initialize;
  // Hybrid sharding (hybrid_sharding.h): the ranks that have the same part as this one, each of
  // which is in another replica of the model. Null: there is one replica. Must outlive the model.
  Communicator* replicas = nullptr;
  // Rank 0's parameters and buffers are copied to all ranks at construction.
  bool broadcast_parameters = true;
  // Rank 0's buffers replace those of the other ranks before each synchronized forward pass.
  bool broadcast_buffers = true;
  // For each collective. Longer than the communicator's own timeout, whose error names the rank
  // that did not come.
  std::chrono::nanoseconds timeout = std::chrono::minutes(11);
  // How the ranks' devices are connected; null: not at all, and all goes through the host.
  ConnectDevice connect_device = ConnectByNccl;
};

// As FullySharded, which says more. Nothing here throws into autograd: what goes wrong is returned
// by the next Finish(), and parameters are zeros until then.
class FullyShardedUnits {
 public:
  static Result<std::unique_ptr<FullyShardedUnits>> Create(
      std::shared_ptr<torch::nn::Module> module, const std::vector<std::string>& units,
      Communicator& communicator, FullyShardedOptions options);
  ~FullyShardedUnits();
  FullyShardedUnits(const FullyShardedUnits&) = delete;
  FullyShardedUnits& operator=(const FullyShardedUnits&) = delete;

  Status Finish();
  // Before the gradients are cleared: brings what a backward pass that ended with an exception had
  // sent to its end, with the other ranks, so that nothing of it is added to what comes next.
  void EndReductions();
  // Whether gradients were averaged since the last call, and are there.
  bool TakeAveraged();
  // Every unit's parameters, in the type that their parts have, until ReleaseAll(), with which
  // values of this rank's part are kept. Then this rank's parts may be changed.
  Status GatherAll();
  Status ReleaseAll(bool keep);
  // Before this rank's parts are changed otherwise: until devices do not copy them from the host
  // any more.
  void AwaitCopies();

  void set_synchronize(bool synchronize) { synchronize_ = synchronize; }
  bool synchronize() const { return synchronize_; }
  // What went wrong so far.
  const Status& failure() const { return failure_; }
  // Keeps the first that went wrong, after which nothing more is sent; returns that.
  Status Fail(const Status& status);
  // What an error begins with.
  std::string Mine() const;

  // Of all units, in their order.
  std::vector<FlatParameter*> flats() const;
  const ShardRoute& route() const { return links_.route(); }
  // Of several replicas, whose states are the same, the first saves it.
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
  // Finds each parameter's unit.
  Status AssignParameters();
  Status CheckSameOnAllRanks();
  Status Begin();
  // Of a model on the meta device.
  Status Initialize();

  // As the units are called, forward and backward.
  void BeforeForward(Unit& unit);
  void AfterForward(Unit& unit);
  torch::Tensor Enter(Unit& unit, const torch::Tensor& input);
  void Leave(Unit& unit, const torch::Tensor& output);
  void BeforeBackward(Unit& unit);
  void AfterBackward(Unit& unit);
  void OnBackwardEnd();

  void BeginPass();
  // Of parameters that are used outside their units.
  Status EndWatch();
  void Start(Unit& unit);
  // Gathers what is not there yet.
  void Require(Unit& unit);
  void Prefetch(Unit* unit);
  void Release(Unit& unit);
  void Reduce(Unit& unit);

  const std::shared_ptr<torch::nn::Module> module_;
  const FullyShardedOptions options_;
  ShardLinks links_;
  // Of the model, or where it gets memory.
  torch::Device device_ = torch::kCPU;
  bool on_meta_ = false;
  // The root first, the others in the model's order.
  std::vector<std::unique_ptr<Unit>> units_;
  // The unit that began last, in the pass under way.
  Unit* last_ = nullptr;
  UnitOrder order_;
  ReductionsUnderWay reductions_;
  size_t gathered_bytes_ = 0;
  size_t most_gathered_bytes_ = 0;

  bool synchronize_ = true;
  // Of the last forward pass.
  bool pass_synchronized_ = true;
  bool end_queued_ = false;
  // Whether a backward pass came to its end since the last Finish().
  bool backward_ended_ = false;
  // Whether gradients were averaged since the last TakeAveraged().
  bool averaged_ = false;
  bool watched_ = false;
  std::unique_ptr<ParameterWatch> watch_;
  Status failure_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_FULLY_SHARDED_FULLY_SHARDED_UNITS_H_
