#include "cadre/torch/batch_parts.h"

#include <algorithm>
#include <utility>

#include "torch/utils.h"

namespace cadre::nn::internal {
namespace {

// Those of the arguments that are cut have as many; -1: none is.
int64_t CountSamples(const std::vector<torch::Tensor>& inputs, int64_t dimension) {
  int64_t samples = -1;
  for (const torch::Tensor& input : inputs) {
    if (!input.defined() || input.dim() == 0) continue;
    const int64_t here = input.size(dimension);
    TORCH_CHECK(samples < 0 || here == samples, "ScatterParallel: arguments have ", samples,
                " and ", here, " samples in dimension ", dimension);
    samples = here;
  }
  return samples;
}

torch::Tensor Join(const std::vector<torch::Tensor>& parts, torch::Device device,
                   int64_t dimension) {
  std::vector<torch::Tensor> there;
  bool has_dimensions = false;
  for (const torch::Tensor& part : parts) {
    TORCH_CHECK(part.defined(), "ScatterParallel: one part returned a tensor and another none");
    has_dimensions = has_dimensions || part.dim() > 0;
    const torch::Tensor moved = part.to(device);
    there.push_back(moved.dim() > 0 ? moved : moved.reshape({1}));
  }
  return torch::cat(there, has_dimensions ? dimension : 0);
}

}  // namespace

PartTensors Scatter(const std::vector<torch::Tensor>& inputs,
                    const std::vector<torch::Device>& devices, int64_t dimension) {
  const auto count = static_cast<int64_t>(devices.size());
  const int64_t samples = CountSamples(inputs, dimension);
  // As torch::chunk() has it.
  const int64_t each = std::max<int64_t>((samples + count - 1) / count, 1);
  PartTensors parts(static_cast<size_t>(std::max<int64_t>((samples + each - 1) / each, 1)));
  for (size_t i = 0; i < parts.size(); ++i) {
    const torch::Device device = devices[i];
    for (const torch::Tensor& input : inputs) {
      torch::Tensor part = input;
      if (part.defined() && part.dim() > 0 && parts.size() > 1) {
        const int64_t first = static_cast<int64_t>(i) * each;
        part = part.narrow(dimension, first, std::min(each, samples - first));
      }
      if (part.defined()) part = part.to(device, part.scalar_type(), !device.is_cpu());
      parts[i].push_back(std::move(part));
    }
  }
  return parts;
}

std::vector<torch::Tensor> Gather(const PartTensors& outputs, torch::Device device,
                                  int64_t dimension) {
  std::vector<torch::Tensor> joined;
  for (size_t t = 0; t < outputs[0].size(); ++t) {
    std::vector<torch::Tensor> parts;
    bool is_there = false;
    for (const auto& output : outputs) {
      TORCH_CHECK(output.size() == outputs[0].size(), "ScatterParallel: one part returned ",
                  outputs[0].size(), " tensors, and another ", output.size());
      is_there = is_there || output[t].defined();
      parts.push_back(output[t]);
    }
    joined.push_back(is_there ? Join(parts, device, dimension) : torch::Tensor());
  }
  return joined;
}

}  // namespace cadre::nn::internal
