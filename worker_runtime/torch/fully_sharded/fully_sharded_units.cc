#include "cadre/torch/fully_sharded/fully_sharded_units.h"

#include <map>
#include <set>
#include <utility>

#include "cadre/parameter.h"
#include "cadre/same_options.h"
#include "cadre/status_macros.h"
#include "cadre/torch/fully_sharded/fully_sharded_unit.h"
#include "cadre/torch/fully_sharded/meta_initialization.h"
#include "cadre/torch/guarded.h"
#include "cadre/torch/hybrid_sharding.h"
#include "cadre/torch/tensors.h"
#include "cadre/wait_or_abort.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

// Whether a parameter's or a module's name is within the module `outer`; all are within the root.
bool IsWithin(const std::string& name, const std::string& outer) {
  return outer.empty() || name == outer || name.rfind(outer + ".", 0) == 0;
}

// Rank 0's values of these, where that is wanted.
Status FromFirstRank(ShardLinks& links, const FullyShardedOptions& options,
                     const std::vector<FlatMember>& members) {
  if (!options.broadcast_parameters) return OkStatus();
  std::vector<RootedTensor> first;
  for (const FlatMember& member : members) {
    first.push_back({member.name, member.tensor.detach().contiguous(), 0});
  }
  CADRE_RETURN_IF_ERROR(links.FromFirstRank([&](Communicator& ranks, DeviceLinks* devices) {
    return BroadcastTensors(ranks, first, options.timeout, devices);
  }));
  for (size_t i = 0; i < members.size(); ++i) {
    const torch::Tensor ours = members[i].tensor.detach();
    // Those with gaps were copied.
    if (ours.data_ptr() != first[i].tensor.data_ptr()) ours.copy_(first[i].tensor);
  }
  return OkStatus();
}

// One flat parameter for each type, and for what is trained and what is not; none has values yet.
std::vector<std::unique_ptr<FlatParameter>> FlatsOf(std::vector<FlatMember> parameters,
                                                    const FullyShardedOptions& options,
                                                    const torch::Device& device,
                                                    const ShardRoute& route) {
  using Kind = std::pair<torch::ScalarType, bool>;
  std::map<Kind, std::vector<FlatMember>> kinds;
  for (FlatMember& member : parameters) {
    const Kind kind(member.tensor.scalar_type(), member.tensor.requires_grad());
    kinds[kind].push_back(std::move(member));
  }
  std::vector<std::unique_ptr<FlatParameter>> flats;
  for (auto& [kind, members] : kinds) {
    const torch::ScalarType type = options.parameter_type.value_or(kind.first);
    const ShardTypes types = {options.offload_to_host, kind.first, type,
                              options.reduction_type.value_or(type)};
    flats.push_back(
        std::make_unique<FlatParameter>(std::move(members), kind.second, types, device, route));
  }
  return flats;
}

ChosenOptions ChosenIn(const FullyShardedOptions& options) {
  const auto name_of = [](const std::optional<torch::ScalarType>& type) {
    return type ? std::string(torch::toString(*type)) : "the model's own";
  };
  const auto yes_or_no = [](bool is) { return std::string(is ? "true" : "false"); };
  return {
      {"FullyShardedOptions::parameter_type", name_of(options.parameter_type)},
      {"FullyShardedOptions::reduction_type", name_of(options.reduction_type)},
      {"FullyShardedOptions::reshard_after_forward", yes_or_no(options.reshard_after_forward)},
      {"FullyShardedOptions::offload_to_host", yes_or_no(options.offload_to_host)},
      {"FullyShardedOptions::most_gathered_bytes", std::to_string(options.most_gathered_bytes)},
      {"FullyShardedOptions::broadcast_parameters", yes_or_no(options.broadcast_parameters)},
      {"FullyShardedOptions::broadcast_buffers", yes_or_no(options.broadcast_buffers)},
  };
}

}  // namespace

FullyShardedUnits::FullyShardedUnits(std::shared_ptr<torch::nn::Module> module,
                                     Communicator& communicator, FullyShardedOptions options)
    : module_(std::move(module)),
      options_(std::move(options)),
      links_(communicator, options_.replicas, options_.timeout),
      reductions_(links_.route()) {}

FullyShardedUnits::~FullyShardedUnits() {
  // Devices' communicators would take with them what the other ranks wait for.
  if (!reductions_.empty()) links_.AbortOnHost();
  links_.AwaitDevices();
}

Result<std::unique_ptr<FullyShardedUnits>> FullyShardedUnits::Create(
    std::shared_ptr<torch::nn::Module> module, const std::vector<std::string>& units,
    Communicator& communicator, FullyShardedOptions options) {
  std::unique_ptr<FullyShardedUnits> result(
      new FullyShardedUnits(std::move(module), communicator, std::move(options)));
  // The others wait for this rank's parameters.
  CADRE_RETURN_IF_ERROR(result->Fail(Guarded("sharding of a model", [&]() -> Status {
    if (result->module_ == nullptr) {
      return InvalidArgumentError(result->Mine() + "the module that is to be sharded is null");
    }
    CADRE_RETURN_IF_ERROR(CheckTimeout("FullyShardedOptions::timeout", result->options_.timeout));
    CADRE_RETURN_IF_ERROR(result->AddUnits(units));
    CADRE_RETURN_IF_ERROR(result->AssignParameters());
    return result->Begin();
  })));
  return result;
}

std::string FullyShardedUnits::Mine() const { return RankName(route()) + ": "; }

Status FullyShardedUnits::Fail(const Status& status) {
  if (status.ok() || !failure_.ok()) return failure_;
  failure_ = status;
  links_.Abort();
  return failure_;
}

Status FullyShardedUnits::AddUnits(const std::vector<std::string>& names) {
  units_.push_back(std::make_unique<Unit>(this, 0, "", *module_));
  std::set<std::string> wanted;
  for (const std::string& name : names) {
    if (wanted.insert(name).second) continue;
    return InvalidArgumentError(Mine() + "the units name '" + name + "' twice");
  }
  // In the model's order, in whatever order they are named.
  for (const auto& item : module_->named_modules()) {
    if (item.key().empty() || wanted.erase(item.key()) == 0) continue;
    const auto index = static_cast<int32_t>(units_.size());
    units_.push_back(std::make_unique<Unit>(this, index, item.key(), *item.value()));
  }
  if (!wanted.empty()) {
    return InvalidArgumentError(Mine() + "the model has no submodule '" + *wanted.begin() + "'");
  }
  for (const auto& unit : units_) {
    const Status announced = unit->Announce();
    if (announced.ok()) continue;
    return FailedPreconditionError(Mine() + (unit->root() ? "the model" : "'" + unit->name + "'") +
                                   " is a unit of another FullySharded model already");
  }
  return OkStatus();
}

Status FullyShardedUnits::AssignParameters() {
  std::map<const void*, std::pair<Unit*, std::string>> owners;
  std::optional<torch::Device> device;
  for (const auto& item : module_->named_parameters()) {
    const torch::Tensor& tensor = item.value();
    if (!tensor.defined()) continue;
    Unit* innermost = units_.front().get();
    for (const auto& unit : units_) {
      if (IsWithin(item.key(), unit->name) && unit->name.size() >= innermost->name.size()) {
        innermost = unit.get();
      }
    }
    const std::string parameter = Mine() + "parameter '" + item.key() + "'";
    const auto [owner, is_new] =
        owners.emplace(tensor.unsafeGetTensorImpl(), std::make_pair(innermost, item.key()));
    if (!is_new && owner->second.first != innermost) {
      return InvalidArgumentError(parameter + " is shared by two units: it is '" +
                                  owner->second.second +
                                  "', too; name neither unit, or one that contains both");
    }
    if (!is_new) continue;
    if (!DataTypeOf(tensor.scalar_type()) || !torch::isFloatingType(tensor.scalar_type()) ||
        tensor.layout() != torch::kStrided) {
      return InvalidArgumentError(parameter + " is " + torch::toString(tensor.scalar_type()) +
                                  ", which cannot be sharded");
    }
    if (device && *device != tensor.device()) {
      return InvalidArgumentError(parameter + " is on " + tensor.device().str() +
                                  ", and those before it on " + device->str());
    }
    device = tensor.device();
    if (options_.device && !device->is_meta() && *options_.device != *device) {
      return InvalidArgumentError(parameter + " is on " + device->str() +
                                  ", and FullyShardedOptions::device, which is for models on the "
                                  "meta device, is " +
                                  options_.device->str());
    }
    if (tensor.grad().defined()) {
      return InvalidArgumentError(parameter + " has a gradient already");
    }
    innermost->parameters.push_back({item.key(), tensor});
  }
  if (!device) return InvalidArgumentError(Mine() + "the model has no parameters");
  on_meta_ = device->is_meta();
  if (on_meta_ && options_.initialize == nullptr) {
    return InvalidArgumentError(
        Mine() +
        "the model is on the meta device, and FullyShardedOptions::initialize does not say which "
        "values it begins with; ResetParameters gives libtorch's own modules theirs");
  }
  device_ = on_meta_ ? options_.device.value_or(torch::kCPU) : *device;
  return OkStatus();
}

Status FullyShardedUnits::CheckSameOnAllRanks() {
  std::vector<Parameter> parameters;
  std::map<const void*, const Unit*> unit_of;
  for (const auto& unit : units_) {
    for (const FlatMember& member : unit->parameters) {
      unit_of[member.tensor.unsafeGetTensorImpl()] = unit.get();
    }
  }
  // In the module's order, which does not depend on the units. Each once.
  for (const auto& item : module_->named_parameters()) {
    const torch::Tensor& tensor = item.value();
    const auto found = unit_of.find(tensor.unsafeGetTensorImpl());
    if (found == unit_of.end()) continue;
    const Unit& unit = *found->second;
    unit_of.erase(found);
    const Buffer value = {nullptr, static_cast<size_t>(tensor.numel()),
                          *DataTypeOf(tensor.scalar_type())};
    parameters.push_back({item.key(), value, tensor.sizes().vec()});
    parameters.back().kept_as = (tensor.requires_grad() ? "trained" : "frozen") +
                                std::string(" on ") + torch::Device(tensor.device().type()).str() +
                                " in " + (unit.root() ? "the root unit" : "unit " + unit.name);
  }
  const auto compare = [&](Communicator& ranks) -> Status {
    CADRE_RETURN_IF_ERROR(CheckSameParameters(ranks, parameters, options_.timeout));
    return CheckSameOptions(ranks, ChosenIn(options_), options_.timeout);
  };
  CADRE_RETURN_IF_ERROR(compare(*route().parts.host));
  if (options_.replicas == nullptr) return OkStatus();
  const Status same = compare(*options_.replicas);
  if (same.code() != StatusCode::kInvalidArgument) return same;
  return InvalidArgumentError("the replicas, whose ranks these are, differ: " + same.message());
}

Status FullyShardedUnits::Begin() {
  const Status fit = CheckGroupsFit(*route().parts.host, options_.replicas, options_.timeout);
  if (fit.code() == StatusCode::kInvalidArgument) {
    return InvalidArgumentError(Mine() + fit.message());
  }
  CADRE_RETURN_IF_ERROR(fit);
  CADRE_RETURN_IF_ERROR(CheckSameOnAllRanks());
  CADRE_RETURN_IF_ERROR(links_.Connect(device_, options_.connect_device));
  const torch::NoGradGuard no_grad;
  if (on_meta_) {
    CADRE_RETURN_IF_ERROR(Initialize());
  } else {
    std::vector<FlatMember> all;
    for (const auto& unit : units_) {
      all.insert(all.end(), unit->parameters.begin(), unit->parameters.end());
    }
    CADRE_RETURN_IF_ERROR(FromFirstRank(links_, options_, all));
    all.clear();
    // One unit after the other, so that only one is there twice.
    for (const auto& unit : units_) {
      unit->flats = FlatsOf(std::move(unit->parameters), options_, device_, route());
      for (const auto& flat : unit->flats) {
        for (size_t m = 0; m < flat->members().size(); ++m) flat->Take(m);
      }
    }
  }
  if (!options_.broadcast_parameters) return OkStatus();
  return links_.FromFirstRank([&](Communicator& ranks, DeviceLinks* links) {
    return BroadcastBuffers(ranks, *module_, options_.timeout, links);
  });
}

Status FullyShardedUnits::Initialize() {
  MetaInitialization initialization(Mine(), device_, options_.initialize,
                                    [&](const std::vector<FlatMember>& members) {
                                      return FromFirstRank(links_, options_, members);
                                    });
  for (const auto& unit : units_) {
    unit->flats = FlatsOf(std::move(unit->parameters), options_, device_, route());
    std::vector<FlatParameter*> flats;
    for (const auto& flat : unit->flats) flats.push_back(flat.get());
    initialization.AddUnit(unit->module(), flats);
  }
  return initialization.Run(*module_);
}

std::vector<FlatParameter*> FullyShardedUnits::flats() const {
  std::vector<FlatParameter*> flats;
  for (const auto& unit : units_) {
    for (const auto& flat : unit->flats) flats.push_back(flat.get());
  }
  return flats;
}

Status FullyShardedUnits::Finish() {
  CADRE_RETURN_IF_ERROR(failure_);
  CADRE_RETURN_IF_ERROR(Fail(EndWatch()));
  CADRE_RETURN_IF_ERROR(Fail(Guarded("gradients of a sharded model", [&]() -> Status {
    CADRE_RETURN_IF_ERROR(reductions_.Finish());
    return links_.CheckHealth();
  })));
  if (std::exchange(backward_ended_, false)) return OkStatus();
  return FailedPreconditionError(
      Mine() +
      "Finish() without a backward pass: no gradient of this model was computed since the "
      "last one");
}

void FullyShardedUnits::EndReductions() {
  if (reductions_.empty() || !failure_.ok()) return;
  (void)Fail(Guarded("gradients of a sharded model", [&] { return reductions_.Finish(); }));
}

bool FullyShardedUnits::TakeAveraged() {
  return reductions_.empty() && std::exchange(averaged_, false);
}

}  // namespace cadre::nn
