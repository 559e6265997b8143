// Where an example trains: its flag --device. Includes libtorch.
#ifndef CADRE_EXAMPLES_DEVICE_DEVICE_H_
#define CADRE_EXAMPLES_DEVICE_DEVICE_H_

#include <cstdint>
#include <string>

#include "cadre/result.h"
#include "torch/types.h"

namespace cadre {

// `flag` is cpu, cuda, or empty: cuda where libtorch finds a GPU, else cpu. Ranks of a node take
// its GPUs in turn, so that more ranks than GPUs share them. INVALID_ARGUMENT: it is none of these;
// FAILED_PRECONDITION: cuda, and libtorch finds no GPU.
Result<torch::Device> ChooseDevice(const std::string& flag, int local_rank);

// The GPUs of this machine that `flag` gives to ranks; 1 where they are on the CPU.
int DeviceCount(const std::string& flag);

// Memory from which a copy to `device` need not be waited for.
torch::TensorOptions HostMemoryFor(const torch::Device& device);

}  // namespace cadre

#endif  // CADRE_EXAMPLES_DEVICE_DEVICE_H_
