#include "cadre/torch/meta_device.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "ATen/core/dispatch/Dispatcher.h"
#include "cadre/status_macros.h"
#include "torch/library.h"
#include "torch/nn/functional/instancenorm.h"  // which its modules' header lacks
#include "torch/nn/modules/activation.h"
#include "torch/nn/modules/adaptive.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/instancenorm.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/normalization.h"
#include "torch/nn/modules/rnn.h"
#include "torch/utils.h"
#include "worker_runtime/torch/fully_sharded/meta_initialization.h"
#include "worker_runtime/torch/guarded.h"

namespace cadre::nn {
namespace {

// libtorch's dispatch key for deferred initialization, which libtorch itself does not use.
constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

bool IsTensor(const c10::IValue& value) {
  return value.isTensor() || value.isTensorList() || value.isOptionalTensorList();
}

// An operator that makes a new tensor gets the device meta if none is given. Operators that it
// calls in turn are not changed: their scratch tensors are their own.
void MakeOnMeta(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(kKey);
  const auto& arguments = op.schema().arguments();
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(arguments.size());
  if (std::none_of(first, stack->end(), IsTensor)) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& given = first[static_cast<std::ptrdiff_t>(i)];
      if (arguments[i].name() == "device" && given.isNone()) given = c10::Device(c10::kMeta);
    }
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

// Registers the fallback once in a process.
c10::DispatchKey Registered() {
  static const torch::Library* const library = [] {
    auto* made = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&MakeOnMeta>());
    return made;
  }();
  (void)library;
  return kKey;
}

template <typename Kind>
bool ResetOne(torch::nn::Module& module) {
  auto* const one = dynamic_cast<Kind*>(&module);
  if (one != nullptr) one->reset_parameters();
  return one != nullptr;
}

template <typename... Kinds>
bool ResetAnyOf(torch::nn::Module& module) {
  return (ResetOne<Kinds>(module) || ...);
}

}  // namespace

OnMetaDevice::OnMetaDevice() : included_(Registered()) {}

void GiveMemory(const torch::Tensor& tensor, const torch::Device& device) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor there =
      torch::empty(tensor.sizes(), tensor.options().device(device).requires_grad(false));
  // set_data() refuses this, since a backward pass could know the tensor as one on another device;
  // on the meta device there was no backward pass.
  tensor.unsafeGetTensorImpl()->shallow_copy_from(there.getIntrusivePtr());
}

bool ResetParameters(torch::nn::Module& module) {
  using namespace torch::nn;  // NOLINT(build/namespaces): a list of its modules
  if (ResetAnyOf<LinearImpl, BilinearImpl, EmbeddingImpl, EmbeddingBagImpl, LayerNormImpl,
                 GroupNormImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl, ConvTranspose1dImpl,
                 ConvTranspose2dImpl, ConvTranspose3dImpl, BatchNorm1dImpl, BatchNorm2dImpl,
                 BatchNorm3dImpl, InstanceNorm1dImpl, InstanceNorm2dImpl, InstanceNorm3dImpl,
                 RNNImpl, LSTMImpl, GRUImpl, RNNCellImpl, LSTMCellImpl, GRUCellImpl,
                 AdaptiveLogSoftmaxWithLossImpl>(module)) {
    return true;
  }
  if (auto* const attention = dynamic_cast<MultiheadAttentionImpl*>(&module)) {
    attention->_reset_parameters();
    return true;
  }
  if (auto* const rectifier = dynamic_cast<PReLUImpl*>(&module)) {
    const torch::NoGradGuard no_grad;
    rectifier->weight.fill_(rectifier->options.init());
    return true;
  }
  return false;
}

Status InitializeOn(torch::nn::Module& model, const torch::Device& device,
                    const InitializeModule& initialize) {
  return MetaInitialization("", device, initialize, nullptr).Run(model);
}

MetaInitialization::MetaInitialization(std::string who, const torch::Device& device,
                                       InitializeModule initialize, FromFirstRank from_first_rank)
    : who_(std::move(who)),
      device_(device),
      initialize_(std::move(initialize)),
      from_first_rank_(std::move(from_first_rank)) {}

void MetaInitialization::AddUnit(const torch::nn::Module& module,
                                 const std::vector<FlatParameter*>& flats) {
  units_[&module] = flats;
}

Status MetaInitialization::Visit(torch::nn::Module& module, const std::string& name) {
  // A module that is registered in two places is made once.
  if (!visited_.insert(&module).second) return OkStatus();
  const auto unit = units_.find(&module);
  if (unit != units_.end()) {
    for (const FlatParameter* const flat : unit->second) {
      for (const FlatMember& member : flat->members()) GiveMemory(member.tensor, device_);
    }
  }
  for (const auto& child : module.named_children()) {
    CADRE_RETURN_IF_ERROR(
        Visit(*child.value(), name.empty() ? child.key() : name + "." + child.key()));
  }
  CADRE_RETURN_IF_ERROR(InitializeOwn(module, name));
  return unit == units_.end() ? OkStatus() : Keep(unit->second);
}

Status MetaInitialization::InitializeOwn(torch::nn::Module& module, const std::string& name) {
  const torch::NoGradGuard no_grad;
  bool has_own = false;
  // Parameters that another module has initialized and this one shares, such as tied weights.
  std::vector<std::pair<torch::Tensor, torch::Tensor>> shared;
  for (const torch::Tensor& parameter : module.parameters(/*recurse=*/false)) {
    if (!parameter.defined()) continue;
    if (initialized_.insert(parameter.unsafeGetTensorImpl()).second) {
      has_own = true;
      if (parameter.is_meta()) GiveMemory(parameter, device_);
      // NaN shows values that the initialization leaves out.
      if (parameter.is_floating_point()) parameter.fill_(std::numeric_limits<double>::quiet_NaN());
    } else {
      shared.emplace_back(parameter, parameter.clone());
    }
  }
  for (const torch::Tensor& buffer : module.buffers(/*recurse=*/false)) {
    if (!buffer.defined() || buffer.device() == device_) continue;
    const torch::Tensor before = buffer.detach();
    GiveMemory(buffer, device_);
    if (before.is_meta()) {
      has_own = true;
    } else {
      torch::Tensor(buffer).copy_(before);
    }
  }
  if (!has_own) return OkStatus();
  const std::string which =
      (name.empty() ? "the model itself" : "'" + name + "'") + ", a " + module.name();
  CADRE_RETURN_IF_ERROR(Guarded(who_ + "initialization of " + which, [&] {
    if (initialize_(module)) return OkStatus();
    return InvalidArgumentError(who_ +
                                "the model is on the meta device, and its `initialize` does not "
                                "know which values the own parameters and buffers of " +
                                which + ", begin with");
  }));
  for (auto& [parameter, value] : shared) parameter.copy_(value);
  return OkStatus();
}

Status MetaInitialization::Keep(const std::vector<FlatParameter*>& flats) {
  for (FlatParameter* const flat : flats) {
    CADRE_RETURN_IF_ERROR(from_first_rank_(flat->members()));
    for (size_t m = 0; m < flat->members().size(); ++m) flat->Take(m);
  }
  return OkStatus();
}

}  // namespace cadre::nn
