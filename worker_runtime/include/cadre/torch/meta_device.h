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
//   auto model = cadre::nn::FullySharded<NetImpl>::Create(net, units, communicator, options);
#ifndef CADRE_TORCH_META_DEVICE_H_
#define CADRE_TORCH_META_DEVICE_H_

#include "c10/core/impl/LocalDispatchKeySet.h"
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

// The tensor gets memory there, whose values are any, and stays the same tensor, which modules and
// optimizers know.
void GiveMemory(const torch::Tensor& tensor, const torch::Device& device);

// What the module's own constructor gives its parameters and buffers at first, not those of the
// modules within it; false: it is none of libtorch's.
bool ResetParameters(torch::nn::Module& module);

}  // namespace cadre::nn

#endif  // CADRE_TORCH_META_DEVICE_H_
