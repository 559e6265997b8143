// The device on which an example trains: its flag --device. Includes libtorch.
#ifndef CADRE_EXAMPLES_DEVICE_DEVICE_H_
#define CADRE_EXAMPLES_DEVICE_DEVICE_H_

#include <cstdint>
#include <string>

#include "cadre/result.h"
#include "torch/types.h"

namespace cadre {

// `flag` is cpu, cuda, or empty, which means cuda if libtorch finds a GPU, else cpu. Ranks of a
// node take its GPUs in turn, so that more ranks than GPUs share them. Fails with INVALID_ARGUMENT
// for any other flag, and with FAILED_PRECONDITION for cuda if libtorch finds no GPU.
Result<torch::Device> ChooseDevice(const std::string& flag, int local_rank);

// Returns how many GPUs of this machine ranks with this flag can use; 1 if they are on the CPU.
int DeviceCount(const std::string& flag);

// Returns options for host memory from which a copy to `device` is asynchronous.
torch::TensorOptions HostMemoryFor(const torch::Device& device);

}  // namespace cadre

#endif  // CADRE_EXAMPLES_DEVICE_DEVICE_H_
