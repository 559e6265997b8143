// Creates models without memory: their parameters are on libtorch's meta device, where a tensor has
// only a shape and a type. For models that are too large for one process, to which FullySharded
// gives memory unit by unit. After PyTorch's `with torch.device("meta")`, to_empty() and
// reset_parameters().
//
//   std::shared_ptr<NetImpl> net;
//   {
//     const cadre::nn::OnMetaDevice without_memory;
//     net = std::make_shared<NetImpl>();
//   }
//   cadre::nn::FullyShardedOptions options;
//   options.device = torch::Device(torch::kCUDA, local_rank);
//   options.initialize = cadre::nn::ResetParameters;
//   auto model = cadre::nn::FullySharded<NetImpl>::Create(net, units, communicator, options);
#ifndef CADRE_TORCH_META_DEVICE_H_
#define CADRE_TORCH_META_DEVICE_H_

#include <functional>

#include "c10/core/impl/LocalDispatchKeySet.h"
#include "cadre/status.h"
#include "torch/nn/module.h"
#include "torch/types.h"

namespace cadre::nn {

// While it lives, tensors that this thread creates by torch::empty(), zeros(), randn() and the like
// are on the meta device, unless options name a device; filling them changes nothing and draws no
// random numbers. A list, torch::tensor({1, 2}), stays on the host. Operations that read values
// throw there.
class OnMetaDevice {
 public:
  OnMetaDevice();
  OnMetaDevice(const OnMetaDevice&) = delete;
  OnMetaDevice& operator=(const OnMetaDevice&) = delete;

 private:
  const c10::impl::IncludeDispatchKeyGuard included_;
};

// Gives a module's own parameters and buffers, not those of its submodules, which are initialized
// separately, their first values, in place. Until then floating-point parameters are NaN. Called
// for modules that have parameters or buffers on the meta device. Returns false if it does not know
// the module.
using InitializeModule = std::function<bool(torch::nn::Module&)>;

// Initializes like the constructors of libtorch's own modules. What other constructors do to their
// submodules is not known: a Transformer's parameters, for example, get the first values of its
// layers.
bool ResetParameters(torch::nn::Module& module);

// Gives a model memory on that device and first values, as FullySharded does for a model that it
// shards.
//   INVALID_ARGUMENT  naming it: a module that `initialize` does not know
//   INTERNAL          naming the module: what `initialize` threw
Status InitializeOn(torch::nn::Module& model, const torch::Device& device,
                    const InitializeModule& initialize);

// Allocates memory for the tensor on that device, with undefined values. The tensor object, which
// modules and optimizers refer to, stays the same.
void GiveMemory(const torch::Tensor& tensor, const torch::Device& device);

}  // namespace cadre::nn

#endif  // CADRE_TORCH_META_DEVICE_H_
