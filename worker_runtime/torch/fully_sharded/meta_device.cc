#include "cadre/torch/meta_device.h"

#include <algorithm>
#include <cstddef>

#include "ATen/core/dispatch/Dispatcher.h"
#include "cadre/torch/fully_sharded/meta_initialization.h"
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

namespace cadre::nn {
namespace {

// libtorch's key for what is initialized later, which nothing of its own uses.
constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

bool IsTensor(const c10::IValue& value) {
  return value.isTensor() || value.isTensorList() || value.isOptionalTensorList();
}

// Of an operator that makes a tensor of nothing, the device becomes meta where none is given. What
// it calls in turn is not looked at: its scratch tensors are its own.
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

// Once in a process.
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
  // set_data() refuses this, since backward passes could know the tensor as one on another device;
  // there was none on the meta device.
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

}  // namespace cadre::nn
