#include "device.h"

#include <algorithm>

#include "torch/cuda.h"

namespace cadre {

namespace {

int Gpus() {
  return static_cast<int>(torch::cuda::is_available() ? torch::cuda::device_count() : 0);
}

}  // namespace

int DeviceCount(const std::string& flag) { return flag == "cpu" ? 1 : std::max(1, Gpus()); }

Result<torch::Device> ChooseDevice(const std::string& flag, int local_rank) {
  if (flag == "cpu") return torch::Device(torch::kCPU);
  if (!flag.empty() && flag != "cuda") {
    return InvalidArgumentError("--device " + flag + ": expected cpu or cuda");
  }
  if (const int gpus = Gpus(); gpus > 0) {
    return torch::Device(torch::kCUDA, static_cast<torch::DeviceIndex>(local_rank % gpus));
  }
  if (flag.empty()) return torch::Device(torch::kCPU);
  return FailedPreconditionError(
      "--device cuda: libtorch finds no GPU; expected a CUDA build of libtorch and a GPU that "
      "CUDA_VISIBLE_DEVICES shows, or take --device cpu");
}

torch::TensorOptions HostMemoryFor(const torch::Device& device) {
  return torch::TensorOptions().pinned_memory(device.is_cuda());
}

}  // namespace cadre
