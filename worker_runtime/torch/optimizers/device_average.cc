#include "cadre/torch/device_average.h"

#include <utility>

#include "cadre/torch/tensors.h"
#include "cadre/wait_or_abort.h"
#include "torch/utils.h"

namespace cadre::nn {

DeviceAverage::DeviceAverage(DeviceStream& stream, Communicator* communicator,
                             std::vector<torch::Tensor> parameters, const PlainAverage& average)
    : stream_(&stream),
      communicator_(communicator),
      parameters_(std::move(parameters)),
      average_(average) {}

DeviceAverage::~DeviceAverage() {
  if (work_ != nullptr) (void)work_->Wait(kLastDeviceWait);
}

torch::ScalarType DeviceAverage::SentType() const {
  return TypeSent(average_, parameters_.front().scalar_type());
}

size_t DeviceAverage::bytes() const {
  if (communicator_ == nullptr) return 0;
  size_t count = 0;
  for (const torch::Tensor& parameter : parameters_) count += parameter.numel();
  return count * SizeOf(*DataTypeOf(SentType()));
}

void DeviceAverage::Start() {
  if (const auto current = stream_->Current()) stream_->WaitFor(*current);
  const DeviceStream::Scope on(*stream_);
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& parameter : parameters_) {
    const torch::Tensor& grad = parameter.grad();
    if (grad.defined()) stream_->Uses(grad);
    parts.push_back(grad.defined() ? grad.reshape({-1})
                                   : torch::zeros({parameter.numel()}, parameter.options()));
  }
  flat_ = torch::cat(parts);
  if (average_.limit) flat_.clamp_(-*average_.limit, *average_.limit);
  flat_ = flat_.to(SentType());
  if (communicator_ == nullptr || flat_.numel() == 0) return;
  const Reduction average = AverageOf(flat_, communicator_->size());
  work_ = communicator_->AllReduce(BufferOfFlat(flat_), average);
}

Status DeviceAverage::Finish(std::chrono::nanoseconds timeout) {
  if (work_ != nullptr) {
    const Status reduced = WaitOrAbort(*communicator_, work_, timeout);
    if (!reduced.ok()) return reduced;
    work_ = nullptr;
  }
  {
    const DeviceStream::Scope on(*stream_);
    flat_ = flat_.to(parameters_.front().scalar_type());
  }
  stream_->CurrentWaits();
  stream_->CurrentUses(flat_);
  int64_t offset = 0;
  for (torch::Tensor& parameter : parameters_) {
    parameter.mutable_grad() = PartOf(flat_, offset, parameter.sizes());
    offset += parameter.numel();
  }
  flat_ = torch::Tensor();
  return Status();
}

}  // namespace cadre::nn
