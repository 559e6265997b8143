#include "worker_runtime/torch/fully_sharded/fully_sharded_units.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "cadre/parameter.h"
#include "cadre/same_options.h"
#include "cadre/status_macros.h"
#include "cadre/torch/fully_sharded.h"
#include "cadre/torch/hybrid_sharding.h"
#include "cadre/torch/sharded_unit.h"
#include "cadre/torch/tensors.h"
#include "cadre/wait_or_abort.h"
#include "torch/utils.h"
#include "worker_runtime/torch/device_links.h"
#include "worker_runtime/torch/fully_sharded/meta_initialization.h"
#include "worker_runtime/torch/fully_sharded/shard_links.h"
#include "worker_runtime/torch/guarded.h"
#include "worker_runtime/torch/recomputation.h"

namespace cadre::nn {
namespace {

// Whether the name of a parameter or module is inside the module `outer`; all are inside the root.
bool IsWithin(const std::string& name, const std::string& outer) {
  return outer.empty() || name == outer || name.rfind(outer + ".", 0) == 0;
}

// Broadcasts rank 0's values of these, if the options ask for it.
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
    // Tensors with gaps were sent as a dense copy.
    if (ours.data_ptr() != first[i].tensor.data_ptr()) ours.copy_(first[i].tensor);
  }
  return OkStatus();
}

// Makes one flat parameter for each type, separately for trained and frozen ones; none has values
// yet.
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
      links_(std::make_unique<ShardLinks>(communicator, options_.replicas, options_.timeout)),
      order_(std::make_unique<UnitOrder>()),
      reductions_(std::make_unique<PendingReductions>(links_->route())) {}

FullyShardedUnits::~FullyShardedUnits() {
  // Only communicators of the host are aborted: aborting those of devices would cancel reductions
  // that other ranks wait for.
  if (!reductions_->empty()) links_->AbortOnHost();
  links_->AwaitDevices();
}

Result<std::unique_ptr<FullyShardedUnits>> FullyShardedUnits::Create(
    std::shared_ptr<torch::nn::Module> module, const std::vector<std::string>& units,
    Communicator& communicator, FullyShardedOptions options) {
  std::unique_ptr<FullyShardedUnits> result(
      new FullyShardedUnits(std::move(module), communicator, std::move(options)));
  // The other ranks wait for this rank's parameters.
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

const ShardRoute& FullyShardedUnits::route() const { return links_->route(); }

std::string FullyShardedUnits::Mine() const { return RankName(route()) + ": "; }

Status FullyShardedUnits::Fail(const Status& status) {
  if (status.ok() || !failure_.ok()) return failure_;
  failure_ = status;
  links_->Abort();
  return failure_;
}

Status FullyShardedUnits::AddUnits(const std::vector<std::string>& names) {
  units_.push_back(std::make_unique<Unit>(this, 0, "", *module_));
  std::set<std::string> wanted;
  for (const std::string& name : names) {
    if (wanted.insert(name).second) continue;
    return InvalidArgumentError(Mine() + "the units name '" + name + "' twice");
  }
  // Units are in the model's order, whatever the order of the names.
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
  // Each parameter comes once, in the module's order, which does not depend on the units.
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
  CADRE_RETURN_IF_ERROR(links_->Connect(device_, options_.connect_device));
  const torch::NoGradGuard no_grad;
  if (on_meta_) {
    CADRE_RETURN_IF_ERROR(Initialize());
  } else {
    std::vector<FlatMember> all;
    for (const auto& unit : units_) {
      all.insert(all.end(), unit->parameters.begin(), unit->parameters.end());
    }
    CADRE_RETURN_IF_ERROR(FromFirstRank(*links_, options_, all));
    all.clear();
    // Units are sharded one after the other, so that only one is held twice at a time.
    for (const auto& unit : units_) {
      unit->flats = FlatsOf(std::move(unit->parameters), options_, device_, route());
      for (const auto& flat : unit->flats) {
        for (size_t m = 0; m < flat->members().size(); ++m) flat->Take(m);
      }
    }
  }
  if (!options_.broadcast_parameters) return OkStatus();
  return links_->FromFirstRank([&](Communicator& ranks, DeviceLinks* links) {
    return BroadcastBuffers(ranks, *module_, options_.timeout, links);
  });
}

Status FullyShardedUnits::Initialize() {
  MetaInitialization initialization(Mine(), device_, options_.initialize,
                                    [&](const std::vector<FlatMember>& members) {
                                      return FromFirstRank(*links_, options_, members);
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
    CADRE_RETURN_IF_ERROR(reductions_->Finish());
    return links_->CheckHealth();
  })));
  if (std::exchange(backward_ended_, false)) return OkStatus();
  return FailedPreconditionError(
      Mine() +
      "Finish() was called without a backward pass: no gradient of this model was computed since "
      "the last Finish()");
}

void FullyShardedUnits::EndReductions() {
  if (reductions_->empty() || !failure_.ok()) return;
  (void)Fail(Guarded("gradients of a sharded model", [&] { return reductions_->Finish(); }));
}

bool FullyShardedUnits::TakeAveraged() {
  return reductions_->empty() && std::exchange(averaged_, false);
}

// What FullyShardedUnits does during a model's forward and backward passes.

namespace {

ParameterWatch::Names NamesIn(const std::vector<FlatParameter*>& flats) {
  ParameterWatch::Names names;
  for (const FlatParameter* const flat : flats) {
    for (const FlatMember& member : flat->members()) {
      if (member.count > 0) names.emplace(member.tensor.unsafeGetTensorImpl(), member.name);
    }
  }
  return names;
}

}  // namespace

void FullyShardedUnits::BeginPass() {
  // Values that a forward pass without a backward pass left may predate the optimizer's last step.
  for (const auto& unit : units_) {
    Release(*unit);
    // It is still set if the last backward pass ended with an exception.
    unit->in_backward = false;
  }
  end_queued_ = false;
  last_ = nullptr;
  order_->Begin();
  pass_synchronized_ = synchronize_;
  (void)Fail(links_->CheckHealth());
  (void)Fail(EndWatch());
  // The watch covers the first pass and its loss alone, since it takes time; models that use a
  // parameter outside its unit tend to do so from the beginning.
  if (!std::exchange(watched_, true)) watch_ = std::make_unique<ParameterWatch>(NamesIn(flats()));
  if (options_.broadcast_buffers && pass_synchronized_ && module_->is_training() &&
      torch::GradMode::is_enabled() && failure_.ok()) {
    (void)Fail(links_->FromFirstRank([&](Communicator& ranks, DeviceLinks* links) {
      return BroadcastBuffers(ranks, *module_, options_.timeout, links);
    }));
  }
}

Status FullyShardedUnits::EndWatch() {
  const std::unique_ptr<ParameterWatch> watch = std::exchange(watch_, nullptr);
  if (watch == nullptr || watch->found().empty()) return OkStatus();
  return InvalidArgumentError(Mine() + "parameter '" + watch->found() +
                              "' was used outside its unit, where it is empty: call the unit by "
                              "CallUnit(), or do not name it as one");
}

void FullyShardedUnits::BeforeForward(Unit& unit) {
  (void)Fail(Guarded("forward pass of a sharded model", [&] {
    if (unit.root() && unit.calls == 0) BeginPass();
    ++unit.calls;
    if (IsRecomputing()) {
      // This call is part of a backward pass (a recomputation), whose order differs.
      if (torch::GradMode::is_enabled()) BeforeBackward(unit);
      Require(unit);
      return OkStatus();
    }
    if (last_ != nullptr && last_ != &unit) last_->next_forward = &unit;
    last_ = &unit;
    order_->Add(unit.index);
    Require(unit);
    Prefetch(unit.next_forward);
    return OkStatus();
  }));
}

void FullyShardedUnits::AfterForward(Unit& unit) {
  (void)Fail(Guarded("forward pass of a sharded model", [&]() -> Status {
    if (--unit.calls > 0) return OkStatus();
    const bool with_backward = torch::GradMode::is_enabled();
    if (IsRecomputing()) {
      // The unit's own backward pass follows, or that of a part that will be recomputed again.
      if (!unit.in_backward) Release(unit);
      return OkStatus();
    }
    // The unit that ran last stays gathered, because the backward pass begins with it.
    const bool needed_next = unit.next_forward == nullptr && units_.front()->next_backward == &unit;
    const bool stays = unit.root() || needed_next || !options_.reshard_after_forward;
    if (!with_backward || !stays) Release(unit);
    if (!unit.root()) return OkStatus();
    last_ = nullptr;
    // The loss may use a parameter, too.
    const bool found = watch_ != nullptr && !watch_->found().empty();
    if (found || !with_backward) CADRE_RETURN_IF_ERROR(EndWatch());
    for (const auto& other : units_) {
      // Units that were prefetched in vain, since the pass took another order.
      if (!with_backward || other->state == Unit::State::kOnItsWay) Release(*other);
    }
    // An exception of the module takes precedence over errors that follow from it.
    if (std::uncaught_exceptions() > 0 || !failure_.ok()) return OkStatus();
    const Status same = order_->Check(route());
    if (same.code() != StatusCode::kInvalidArgument) return same;
    return InvalidArgumentError(Mine() + same.message());
  }));
}

torch::Tensor FullyShardedUnits::Enter(Unit& unit, const torch::Tensor& input) {
  // The root's gradients are complete when the backward pass is.
  if (unit.root() || !torch::GradMode::is_enabled() || !input.defined() || !input.requires_grad()) {
    return input;
  }
  // view_as() adds an autograd node: it runs after all nodes of the unit, which are younger, and
  // before the node that made the input.
  const torch::Tensor entered = input.view_as(input);
  const auto awaited = std::make_shared<AwaitedInput>(unit.inputs);
  entered.register_hook([this, &unit, awaited](const torch::Tensor&) {
    awaited->Arrived();
    AfterBackward(unit);
  });
  return entered;
}

void FullyShardedUnits::Leave(Unit& unit, const torch::Tensor& output) {
  if (!output.defined() || !output.requires_grad()) return;
  output.register_hook([this, &unit](const torch::Tensor&) { BeforeBackward(unit); });
}

void FullyShardedUnits::BeforeBackward(Unit& unit) {
  (void)Fail(Guarded("backward pass of a sharded model", [&] {
    if (!std::exchange(end_queued_, true)) {
      AtBackwardEnd([this] { OnBackwardEnd(); });
    }
    if (!std::exchange(unit.in_backward, true)) {
      if (last_ != nullptr && last_ != &unit) last_->next_backward = &unit;
      last_ = &unit;
    }
    Require(unit);
    Prefetch(unit.next_backward);
    return OkStatus();
  }));
}

void FullyShardedUnits::AfterBackward(Unit& unit) {
  (void)Fail(Guarded("backward pass of a sharded model", [&] {
    if (*unit.inputs > 0 || !unit.in_backward) return OkStatus();
    unit.in_backward = false;
    Reduce(unit);
    Release(unit);
    return OkStatus();
  }));
}

// Reduces gradients that are complete only now: the root's, those of units whose inputs need no
// gradient, and late ones.
void FullyShardedUnits::OnBackwardEnd() {
  end_queued_ = false;
  backward_ended_ = true;
  (void)Fail(Guarded("end of the backward pass of a sharded model", [&] {
    for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) {
      if (std::exchange((*unit)->in_backward, false) || (*unit)->has_gradients()) Reduce(**unit);
      Release(**unit);
      (*unit)->inputs = std::make_shared<std::atomic<int>>(0);
    }
    last_ = nullptr;
    if (pass_synchronized_) averaged_ = true;
    return OkStatus();
  }));
}

void FullyShardedUnits::Start(Unit& unit) {
  unit.state = Unit::State::kOnItsWay;
  gathered_bytes_ += unit.gathered_bytes();
  most_gathered_bytes_ = std::max(most_gathered_bytes_, gathered_bytes_);
  for (const auto& flat : unit.flats) {
    if (failure_.ok()) (void)Fail(flat->StartGather());
  }
}

void FullyShardedUnits::Require(Unit& unit) {
  if (unit.state == Unit::State::kThere) return;
  if (unit.state == Unit::State::kSharded) Start(unit);
  unit.state = Unit::State::kThere;
  for (const auto& flat : unit.flats) {
    (void)Fail(flat->FinishGather());
    if (!failure_.ok()) flat->GatherNothing();
    flat->Show();
  }
}

void FullyShardedUnits::Prefetch(Unit* unit) {
  if (unit == nullptr || unit->state != Unit::State::kSharded) return;
  const size_t room =
      options_.most_gathered_bytes - std::min(options_.most_gathered_bytes, gathered_bytes_);
  if (unit->gathered_bytes() <= room) Start(*unit);
}

void FullyShardedUnits::Release(Unit& unit) {
  if (unit.state == Unit::State::kSharded) return;
  unit.state = Unit::State::kSharded;
  gathered_bytes_ -= unit.gathered_bytes();
  for (const auto& flat : unit.flats) (void)Fail(flat->Free());
}

void FullyShardedUnits::Reduce(Unit& unit) {
  if (pass_synchronized_ && failure_.ok()) (void)Fail(reductions_->Start(unit.flats));
}

void FullyShardedUnits::AwaitCopies() {
  if (options_.offload_to_host) route().parts.stream->Synchronize();
}

Status FullyShardedUnits::GatherAll() {
  CADRE_RETURN_IF_ERROR(failure_);
  return Fail(Guarded("gathering all parameters", [&]() -> Status {
    CADRE_RETURN_IF_ERROR(EndWatch());
    for (const auto& unit : units_) {
      Release(*unit);
      Require(*unit);
      for (const auto& flat : unit->flats) {
        if (failure_.ok()) (void)Fail(flat->ShowAsKept());
      }
    }
    return failure_;
  }));
}

Status FullyShardedUnits::ReleaseAll(bool keep) {
  return Fail(Guarded("release of all parameters", [&] {
    for (const auto& unit : units_) {
      for (const auto& flat : unit->flats) {
        if (keep && failure_.ok()) flat->KeepOwnPart();
      }
      Release(*unit);
    }
    if (failure_.ok()) AwaitCopies();
    return failure_;
  }));
}

namespace {

Status Compare(const RankRoute& route, const char* other, std::chrono::nanoseconds timeout,
               int64_t mine) {
  if (route.alone()) return OkStatus();
  std::vector<int64_t> all(static_cast<size_t>(route.host->size()));
  Communicator& host = *route.host;
  CADRE_RETURN_IF_ERROR(WaitOrAbort(
      host,
      host.AllGather({&mine, 1, DataType::kInt64}, {all.data(), all.size(), DataType::kInt64}),
      timeout));
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == mine) continue;
    return InvalidArgumentError(std::string("its forward pass and that of ") + other + " " +
                                std::to_string(i) +
                                " ran the units in different orders, or not the same ones; all "
                                "ranks must call the same units in the same order");
  }
  return OkStatus();
}

}  // namespace

Status UnitOrder::Check(const ShardRoute& route) {
  if (pass_ == before_) return OkStatus();
  before_ = pass_;
  const Parameter order = {"order",
                           {pass_.data(), pass_.size(), DataType::kInt32},
                           {static_cast<int64_t>(pass_.size())}};
  const auto mine = static_cast<int64_t>(Fingerprint({&order, 1}));
  CADRE_RETURN_IF_ERROR(Compare(route.parts, "rank", route.timeout, mine));
  return Compare(route.replicas, "replica", route.timeout, mine);
}

namespace {

// Reductions on the host run among the ranks that hold parts and again among the replicas. If the
// network is slower than the backward pass, the pass waits for them, so that memory is bounded. On
// a device the order of the stream bounds it.
constexpr size_t kReductionsInFlight = 2;

}  // namespace

Status PendingReductions::Start(const std::vector<std::unique_ptr<FlatParameter>>& flats) {
  for (const auto& flat : flats) {
    if (!flat->trained()) continue;
    CADRE_RETURN_IF_ERROR(flat->StartReduce());
    reducing_.push_back(flat.get());
  }
  if (reducing_.empty()) return OkStatus();
  const RankRoute& last = route_.replicas.alone() ? route_.parts : route_.replicas;
  const bool in_order = last.alone() || last.device != nullptr;
  return AdvanceReductions(reducing_.front()->waits_before_across() ? kReductionsInFlight : 0,
                           in_order ? std::numeric_limits<size_t>::max() : kReductionsInFlight);
}

Status PendingReductions::AdvanceReductions(size_t reducing, size_t across) {
  while (reducing_.size() > reducing) {
    FlatParameter* const oldest = reducing_.front();
    CADRE_RETURN_IF_ERROR(oldest->ReduceAcross());
    reducing_.pop_front();
    across_.push_back(oldest);
  }
  while (across_.size() > across) {
    CADRE_RETURN_IF_ERROR(across_.front()->FinishReduce());
    across_.pop_front();
  }
  return OkStatus();
}

namespace {

// One registry for the process, because a module does not know which unit it belongs to.
struct Units {
  std::mutex mutex;
  std::map<const torch::nn::Module*, ShardedUnit*> of;
};

Units& AllUnits() {
  static auto* const units = new Units;
  return *units;
}

}  // namespace

Status ShardedUnit::Announce() {
  Units& units = AllUnits();
  const std::lock_guard<std::mutex> lock(units.mutex);
  if (units.of.emplace(module_, this).second) return OkStatus();
  return FailedPreconditionError("the module is sharded already");
}

ShardedUnit::~ShardedUnit() {
  Units& units = AllUnits();
  const std::lock_guard<std::mutex> lock(units.mutex);
  const auto at = units.of.find(module_);
  if (at != units.of.end() && at->second == this) units.of.erase(at);
}

ShardedUnit* ShardedUnit::Of(const torch::nn::Module& module) {
  Units& units = AllUnits();
  const std::lock_guard<std::mutex> lock(units.mutex);
  const auto at = units.of.find(&module);
  return at == units.of.end() ? nullptr : at->second;
}

namespace {

// RecordFunction::inputs() has an assertion that fails in a program built without NDEBUG, because
// libtorch is built with it and does not set the member that is checked. So the member is read
// directly, in the one way that C++ has: explicit instantiations may name private members.
using Inputs = c10::ArrayRef<const c10::IValue> at::RecordFunction::*;
struct InputsMember {
  friend Inputs MemberOf(InputsMember);
};
template <Inputs member>
struct Instantiated {
  friend Inputs MemberOf(InputsMember) { return member; }
};
template struct Instantiated<&at::RecordFunction::inputs_>;

// libtorch calls back a plain function, so the object is found through this.
thread_local ParameterWatch* watch_of_this_thread = nullptr;

}  // namespace

ParameterWatch::ParameterWatch(Names names) : names_(std::move(names)) {
  watch_of_this_thread = this;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&OnOperator)
                                           .needsInputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

ParameterWatch::~ParameterWatch() {
  at::removeCallback(handle_);
  watch_of_this_thread = nullptr;
}

std::unique_ptr<at::ObserverContext> ParameterWatch::OnOperator(const at::RecordFunction& call) {
  ParameterWatch* const watch = watch_of_this_thread;
  if (watch == nullptr) return nullptr;
  for (const c10::IValue& input : call.*MemberOf(InputsMember())) {
    if (input.isTensor()) {
      watch->Check(input.toTensor());
    } else if (input.isTensorList()) {
      for (const torch::Tensor& one : input.toTensorVector()) watch->Check(one);
    }
  }
  return nullptr;
}

void ParameterWatch::Check(const torch::Tensor& tensor) {
  if (!found_.empty() || !tensor.defined() || tensor.numel() > 0) return;
  const auto name = names_.find(tensor.unsafeGetTensorImpl());
  if (name != names_.end()) found_ = name->second;
}

}  // namespace cadre::nn
