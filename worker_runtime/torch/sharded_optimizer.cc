#include "cadre/torch/sharded_optimizer.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cadre/parameter.h"
#include "cadre/same_options.h"
#include "cadre/status_macros.h"
#include "cadre/torch/tensors.h"
#include "cadre/wait_or_abort.h"
#include "torch/utils.h"
#include "worker_runtime/torch/device_links.h"
#include "worker_runtime/torch/gradient_checks.h"
#include "worker_runtime/torch/guarded.h"
#include "worker_runtime/torch/optimizer_state.h"

namespace cadre::nn {
namespace {

std::string ShapeOf(const torch::Tensor& tensor) {
  std::ostringstream text;
  text << torch::toString(tensor.scalar_type()) << " " << tensor.sizes();
  return text.str();
}

}  // namespace

std::vector<int> OwnersBySize(const std::vector<size_t>& bytes, int ranks) {
  std::vector<size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });
  std::vector<size_t> loads(static_cast<size_t>(ranks), 0);
  std::vector<int> owners(bytes.size());
  for (const size_t i : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    owners[i] = static_cast<int>(least - loads.begin());
    *least += bytes[i];
  }
  return owners;
}

ShardedOptimizer::ShardedOptimizer(torch::optim::Optimizer& optimizer, Communicator& communicator,
                                   ShardedOptimizerOptions options)
    : optimizer_(optimizer),
      communicator_(communicator),
      options_(std::move(options)),
      kind_(KindOf(optimizer)) {}

Result<std::unique_ptr<ShardedOptimizer>> ShardedOptimizer::Create(
    const torch::nn::Module& module, torch::optim::Optimizer& optimizer, Communicator& communicator,
    ShardedOptimizerOptions options) {
  std::unique_ptr<ShardedOptimizer> result(
      new ShardedOptimizer(optimizer, communicator, std::move(options)));
  // The other ranks wait for this rank's parameters.
  CADRE_RETURN_IF_ERROR(result->Fail(result->AddPlaces(module)));
  CADRE_RETURN_IF_ERROR(
      result->Fail(Guarded("sharded optimizer", [&] { return result->Begin(); })));
  return result;
}

Status ShardedOptimizer::AddPlaces(const torch::nn::Module& module) {
  CADRE_RETURN_IF_ERROR(CheckTimeout("ShardedOptimizerOptions::timeout", options_.timeout));
  const Status usable = CheckStepsEachAlone(optimizer_);
  if (!usable.ok()) return InvalidArgumentError(Mine() + usable.message());
  std::map<const void*, std::string> names;
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined()) names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  std::vector<size_t> bytes;
  const auto& groups = optimizer_.param_groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t i = 0; i < groups[g].params().size(); ++i) {
      const torch::Tensor& tensor = groups[g].params()[i];
      const auto name = names.find(tensor.unsafeGetTensorImpl());
      if (!tensor.defined() || name == names.end()) {
        return InvalidArgumentError(
            Mine() + "parameter " + std::to_string(i) + " of the optimizer's group " +
            std::to_string(g) + (tensor.defined() ? " (" + ShapeOf(tensor) + ")" : "") +
            " is not one of the module's, or comes twice; make the optimizer over the module's "
            "parameters, after the module has its type and device");
      }
      const bool trained = tensor.requires_grad();
      places_.push_back({name->second, tensor, tensor.data_ptr(), trained, g, 0});
      // A frozen parameter has no state.
      bytes.push_back(trained ? tensor.nbytes() : 0);
      names.erase(name);
    }
  }
  if (places_.empty()) return InvalidArgumentError(Mine() + "the optimizer has no parameters");
  const std::vector<int> owners = OwnersBySize(bytes, communicator_.size());
  for (size_t i = 0; i < places_.size(); ++i) places_[i].owner = owners[i];
  return OkStatus();
}

// All ranks must agree on these, since they decide which rank owns what and what is sent.
Status ShardedOptimizer::CheckSameOnAllRanks() {
  const char* const broadcasts = options_.broadcast_parameters ? "true" : "false";
  CADRE_RETURN_IF_ERROR(CheckSameOptions(
      communicator_,
      {{"optimizer", kind_}, {"ShardedOptimizerOptions::broadcast_parameters", broadcasts}},
      options_.timeout));
  std::vector<Parameter> parameters;
  for (const Place& place : places_) {
    const std::optional<DataType> type = DataTypeOf(place.tensor.scalar_type());
    const Status has_values = CheckHasValues(place.name, place.tensor);
    if (!has_values.ok()) return InvalidArgumentError(Mine() + has_values.message());
    if (!type || !torch::isFloatingType(place.tensor.scalar_type())) {
      return InvalidArgumentError(Mine() + "parameter '" + place.name + "' is " +
                                  ShapeOf(place.tensor) + ", which cannot be sharded");
    }
    const Buffer value = {nullptr, static_cast<size_t>(place.tensor.numel()), *type};
    parameters.push_back({place.name, value, place.tensor.sizes().vec()});
    parameters.back().kept_as = (place.trained ? "trained" : "frozen") + std::string(" on ") +
                                torch::Device(place.tensor.device().type()).str() + " in group " +
                                std::to_string(place.group);
  }
  return CheckSameParameters(communicator_, parameters, options_.timeout);
}

Status ShardedOptimizer::Begin() {
  CADRE_RETURN_IF_ERROR(CheckSameOnAllRanks());
  std::vector<torch::Tensor> tensors;
  std::vector<RootedTensor> first;
  for (const Place& place : places_) {
    tensors.push_back(place.tensor);
    first.push_back({place.name, place.tensor, 0});
  }
  CADRE_ASSIGN_OR_RETURN(links_,
                         DeviceLinks::Connect(communicator_, tensors, options_.connect_device));
  if (options_.broadcast_parameters) {
    CADRE_RETURN_IF_ERROR(Send(first));
  }
  DropOthers();
  return OkStatus();
}

Status ShardedOptimizer::Send(const std::vector<RootedTensor>& tensors) {
  for (const auto& work : under_way_) {
    if (work->done()) CADRE_RETURN_IF_ERROR(work->Wait(std::chrono::nanoseconds(0)));
  }
  // Broadcasts after one that failed fail, too.
  under_way_.clear();
  return BroadcastTensors(communicator_, tensors, options_.timeout, links_.get(), &under_way_);
}

ShardedOptimizer::~ShardedOptimizer() {
  for (const auto& work : under_way_) (void)work->Wait(kLastDeviceWait);
}

Status ShardedOptimizer::Fail(const Status& status) {
  if (status.ok() || !failure_.ok()) return failure_;
  failure_ = status;
  communicator_.Abort();
  if (links_ != nullptr) links_->Abort();
  return failure_;
}

std::string ShardedOptimizer::Mine() const {
  return "rank " + std::to_string(communicator_.rank()) + ": ";
}

bool ShardedOptimizer::IsMine(const Place& place) const {
  return place.owner == communicator_.rank();
}

int ShardedOptimizer::OwnerOf(const torch::Tensor& parameter) const {
  const auto place = std::find_if(places_.begin(), places_.end(),
                                  [&](const Place& one) { return one.tensor.is_same(parameter); });
  return place == places_.end() ? -1 : place->owner;
}

Status ShardedOptimizer::CheckParameter(const Place& place, const torch::Tensor& now) const {
  std::string what;
  if (!now.is_same(place.tensor)) {
    what =
        "is not at its place in the optimizer's group " + std::to_string(place.group) + " any more";
  } else if (now.data_ptr() != place.storage) {
    what = "was given other storage; load or convert the model before Create()";
  } else if (now.requires_grad() != place.trained) {
    what = std::string("was ") + (place.trained ? "frozen" : "thawed") +
           "; save the state, make a new ShardedOptimizer, and load it there";
  } else if (!IsMine(place) && HasState(place)) {
    what =
        "is not this rank's but has state: the optimizer's own step() or load() was called; call "
        "Step() or LoadState() of the ShardedOptimizer";
  } else {
    return OkStatus();
  }
  return FailedPreconditionError(Mine() + "parameter '" + place.name + "' " + what);
}

Status ShardedOptimizer::CheckUnchanged() const {
  size_t at = 0;
  const auto& groups = optimizer_.param_groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const torch::Tensor& now : groups[g].params()) {
      if (at == places_.size() || places_[at].group != g) {
        return FailedPreconditionError(Mine() + "the optimizer's group " + std::to_string(g) +
                                       " got a parameter (" + ShapeOf(now) +
                                       ") after it was sharded; make a new ShardedOptimizer");
      }
      CADRE_RETURN_IF_ERROR(CheckParameter(places_[at++], now));
    }
  }
  if (at == places_.size()) return OkStatus();
  return FailedPreconditionError(Mine() + "parameter '" + places_[at].name +
                                 "' was taken out of the optimizer; make a new ShardedOptimizer");
}

void ShardedOptimizer::StepOwn() {
  std::vector<std::vector<torch::Tensor>> own(optimizer_.param_groups().size());
  for (const Place& place : places_) {
    if (IsMine(place)) own[place.group].push_back(place.tensor);
  }
  const OtherParameters narrowed(optimizer_, std::move(own));
  optimizer_.step();
}

Status ShardedOptimizer::Step() {
  CADRE_RETURN_IF_ERROR(failure_);
  return Fail(Guarded("step of the sharded optimizer", [&]() -> Status {
    CADRE_RETURN_IF_ERROR(CheckUnchanged());
    if (before_step_ != nullptr) CADRE_RETURN_IF_ERROR(before_step_());
    StepOwn();
    std::vector<RootedTensor> stepped;
    for (const Place& place : places_) {
      if (place.trained) stepped.push_back({place.name, place.tensor, place.owner});
    }
    return Send(stepped);
  }));
}

Status ShardedOptimizer::SkipStep() {
  CADRE_RETURN_IF_ERROR(failure_);
  return before_step_ == nullptr ? OkStatus() : Fail(before_step_());
}

void ShardedOptimizer::ZeroGrad() {
  for (Place& place : places_) place.tensor.mutable_grad() = torch::Tensor();
}

Result<double> ShardedOptimizer::ClipGradNorm(double max_norm, double norm_type) {
  CADRE_RETURN_IF_ERROR(failure_);
  CADRE_RETURN_IF_ERROR(CheckNorm(max_norm, norm_type));
  double total = 0;
  const Status status = Guarded("norm of the gradients", [&]() -> Status {
    const torch::NoGradGuard no_grad;
    CADRE_RETURN_IF_ERROR(CheckUnchanged());
    std::vector<torch::Tensor> here, mine;
    for (const Place& place : places_) {
      const torch::Tensor& grad = place.tensor.grad();
      if (!grad.defined()) continue;
      here.push_back(grad);
      if (IsMine(place)) mine.push_back(grad);
    }
    CADRE_ASSIGN_OR_RETURN(total, NormOverRanks(communicator_, mine, norm_type, options_.timeout));
    ClipToNorm(here, total, max_norm);
    return OkStatus();
  });
  CADRE_RETURN_IF_ERROR(Fail(status));
  return total;
}

namespace {

constexpr int kStateTag = 0x05500;

void LoadPart(torch::optim::Optimizer& optimizer, const std::string& part) {
  torch::serialize::InputArchive archive;
  archive.load_from(part.data(), part.size(), torch::Device(torch::kCPU));
  optimizer.load(archive);
}

}  // namespace

bool ShardedOptimizer::HasState(const Place& place) const {
  const auto& state = optimizer_.state();
  return state.find(StateKey(place.tensor)) != state.end();
}

void ShardedOptimizer::DropOthers() {
  for (const Place& place : places_) {
    if (!IsMine(place)) optimizer_.state().erase(StateKey(place.tensor));
  }
}

std::vector<std::string> ShardedOptimizer::Names() const {
  std::vector<std::string> names;
  for (const Place& place : places_) names.push_back(place.name);
  return names;
}

size_t ShardedOptimizer::state_bytes() const {
  size_t bytes = 0;
  for (const auto& item : optimizer_.state()) {
    std::vector<torch::Tensor*> tensors;
    (void)TensorsOf(*item.second, &tensors);
    for (const torch::Tensor* const tensor : tensors) {
      if (tensor->defined()) bytes += tensor->nbytes();
    }
  }
  return bytes;
}

std::string ShardedOptimizer::OwnState() {
  StateAside aside(optimizer_);
  aside.CopyToHost();
  torch::serialize::OutputArchive archive;
  optimizer_.save(archive);
  std::string bytes;
  archive.save_to([&bytes](const void* data, size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  return bytes;
}

Status ShardedOptimizer::SaveState(torch::serialize::OutputArchive& archive, int recipient) {
  CADRE_RETURN_IF_ERROR(failure_);
  CADRE_RETURN_IF_ERROR(CheckSameOptions(
      communicator_, {{"recipient of the state", std::to_string(recipient)}}, options_.timeout));
  if (recipient < 0 || recipient >= communicator_.size()) {
    return InvalidArgumentError("the state was to go to rank " + std::to_string(recipient) +
                                ", but ranks are 0 to " + std::to_string(communicator_.size() - 1));
  }
  return Fail(Guarded("state of the sharded optimizer", [&]() -> Status {
    CADRE_RETURN_IF_ERROR(CheckUnchanged());
    const bool receives = communicator_.rank() == recipient;
    std::string mine = receives ? "" : OwnState();
    struct Part {
      int64_t bytes = 0;
      int64_t states = 0;
    };
    const Part part = {static_cast<int64_t>(mine.size()),
                       static_cast<int64_t>(optimizer_.state().size())};
    std::vector<Part> parts(static_cast<size_t>(communicator_.size()));
    CADRE_RETURN_IF_ERROR(
        WaitOrAbort(communicator_,
                    communicator_.AllGather({const_cast<Part*>(&part), 2, DataType::kInt64},
                                            {parts.data(), 2 * parts.size(), DataType::kInt64}),
                    options_.timeout));
    if (!receives) {
      const Buffer buffer = {mine.data(), mine.size(), DataType::kUint8};
      return WaitOrAbort(communicator_, communicator_.Send(buffer, recipient, kStateTag),
                         options_.timeout);
    }
    std::vector<size_t> sizes;
    size_t states = 0;
    for (const Part& one : parts) {
      sizes.push_back(static_cast<size_t>(one.bytes));
      states += static_cast<size_t>(one.states);
    }
    return Consolidate(sizes, states, archive);
  }));
}

// Gathers one part after the other, so that only one is held twice at a time.
Status ShardedOptimizer::Consolidate(const std::vector<size_t>& sizes, size_t states,
                                     torch::serialize::OutputArchive& archive) {
  StateAside aside(optimizer_);
  aside.CopyToHost();
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    if (rank == communicator_.rank()) continue;
    std::string part(sizes[static_cast<size_t>(rank)], '\0');
    const Buffer buffer = {part.data(), part.size(), DataType::kUint8};
    CADRE_RETURN_IF_ERROR(WaitOrAbort(communicator_, communicator_.Receive(buffer, rank, kStateTag),
                                      options_.timeout));
    LoadPart(optimizer_, part);
  }
  if (optimizer_.state().size() != states) {
    return UnimplementedError(kind_ + "::save() and load() do not keep its state: of " +
                              std::to_string(states) + " parameters' states " +
                              std::to_string(optimizer_.state().size()) + " came through");
  }
  optimizer_.save(archive);
  WriteOptimizerIdentity(archive, kind_, Names());
  return OkStatus();
}

// Checks the states of all parameters, so that all ranks get the same result.
Status ShardedOptimizer::CheckStates() const {
  for (const Place& place : places_) {
    const auto state = optimizer_.state().find(StateKey(place.tensor));
    if (state == optimizer_.state().end()) continue;
    CADRE_RETURN_IF_ERROR(CheckShapes(*state->second, place.name, place.tensor.sizes()));
  }
  return OkStatus();
}

Status ShardedOptimizer::LoadState(torch::serialize::InputArchive& archive) {
  CADRE_RETURN_IF_ERROR(failure_);
  StateAside aside(optimizer_);
  const Status loaded = Guarded("state of the sharded optimizer", [&]() -> Status {
    CADRE_RETURN_IF_ERROR(CheckOptimizerIdentity(archive, kind_, Names()));
    optimizer_.load(archive);
    CADRE_RETURN_IF_ERROR(CheckStates());
    DropOthers();
    for (const Place& place : places_) {
      if (HasState(place)) {
        MoveTo(*optimizer_.state()[StateKey(place.tensor)], place.tensor.device());
      }
    }
    return OkStatus();
  });
  // Exceptions of libtorch come here too.
  if (!loaded.ok()) return InvalidArgumentError(Mine() + loaded.message());
  aside.Keep();
  return OkStatus();
}

}  // namespace cadre::nn
