// Models that are made without memory: their parameters are on libtorch's meta device, where a
// tensor has a shape and a type and nothing else. For models that are too large for one process,
// which FullySharded gives memory unit by unit. After PyTorch's `with torch.device("meta")`,
// to_empty() and reset_parameters().
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

// While it lives, what this thread makes by torch::empty(), zeros(), randn() and the like is on the
// meta device, unless options name a device; filling it changes nothing and draws no random
// numbers. A list, torch::tensor({1, 2}), stays on the host. What reads values throws there.
class OnMetaDevice {
 public:
  OnMetaDevice();
  OnMetaDevice(const OnMetaDevice&) = delete;
  OnMetaDevice& operator=(const OnMetaDevice&) = delete;

 private:
  const c10::impl::IncludeDispatchKeyGuard included_;
};

// Gives a module's own parameters and buffers their first values, not those of the modules within
// it, which have theirs; in place: the tensors stay the same. Until then floating-point parameters
// are not numbers. Called for modules that have some on the meta device. False: it does not know
// the module.
using InitializeModule = std::function<bool(torch::nn::Module&)>;

// As the constructors of libtorch's own modules do. What other constructors do to the modules
// within theirs is not known: a Transformer's parameters, say, get what its layers begin with.
bool ResetParameters(torch::nn::Module& module);

// Gives a model memory on that device and first values, as FullySharded does for one that it
// shards.
//   INVALID_ARGUMENT  naming it: a module that `initialize` does not know
//   INTERNAL          naming the module: what `initialize` threw
Status InitializeOn(torch::nn::Module& model, const torch::Device& device,
                    const InitializeModule& initialize);

// The tensor gets memory there, whose values are any, and stays the same tensor, which modules and
// optimizers know.
void GiveMemory(const torch::Tensor& tensor, const torch::Device& device);

}  // namespace cadre::nn

#endif  // CADRE_TORCH_META_DEVICE_H_
