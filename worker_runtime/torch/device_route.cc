#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "c10/core/impl/VirtualGuardImpl.h"
#include "cadre/status_macros.h"
#include "cadre/torch/finite_check.h"
#include "cadre/torch/gradient_route.h"
#include "cadre/torch/tensors.h"
#include "cadre/work.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

class DeviceRoute : public GradientRoute {
 public:
  DeviceRoute(Reducer* reducer, DeviceStream* stream, std::vector<RouteMember> members,
              const DeviceRouteOptions& options)
      : GradientRoute(reducer, stream, std::move(members)),
        checks_(*options.checks),
        communicator_(options.communicator),
        non_finite_(options.non_finite),
        average_(options.average) {}
  ~DeviceRoute() override {
    // All ranks have sent, and somebody may still use the result.
    if (work_ != nullptr) (void)work_->Wait(kLastDeviceWait);
  }

  Status Allocate(const torch::Tensor& like);
  void WaitFor(c10::Stream written) override {
    GradientRoute::WaitFor(written);
    if (finite_) checks_.WaitFor(written);
  }
  void Send(const std::vector<int>& marks, double weight) override;
  Status Hand(const std::vector<int>& marks, const std::function<bool()>& cancelled) override;
  void Fetch(const StepReport& report) override;
  Status CheckHealth() override;
  size_t bytes_on_devices() const override {
    return communicator_ == nullptr ? 0 : sent().nbytes();
  }

 private:
  // On the device; it is the communicator's memory where there is one.
  Result<torch::Tensor> MakeFlat(const torch::TensorOptions& options);

  // A communicator's memory may be gone at once, as NCCL's is, whoever still reads it: the device
  // does first what it was given, and where it does not come to that, the memory stays.
  static void Free(std::shared_ptr<void> memory, torch::Device device);

  // What is given to the communicator.
  const torch::Tensor& sent() const { return narrow_.defined() ? narrow_ : flat_; }
  void Look();
  void Save(const std::vector<int>& marks);

  struct Saved {
    size_t member = 0;
    torch::Tensor content;
  };

  torch::Tensor View(size_t member) const {
    return flat_.narrow(0, members_[member].offset, members_[member].count);
  }

  DeviceStream& checks_;
  Communicator* const communicator_;
  const NonFinite non_finite_;
  const PlainAverage average_;
  // Defined where gradients travel in another type than their own.
  torch::Tensor narrow_;
  std::optional<FiniteCheck> finite_;
  double weight_ = 1;
  // Gradients that this rank does not have, from before the others' parts were added.
  std::vector<Saved> saved_;
  std::shared_ptr<Work> work_;
};

Result<torch::Tensor> DeviceRoute::MakeFlat(const torch::TensorOptions& options) {
  if (communicator_ == nullptr) {
    const torch::Tensor flat = torch::zeros({count()}, options);
    stream_->Uses(flat);
    return flat;
  }
  const size_t bytes = static_cast<size_t>(count()) * options.dtype().itemsize();
  // Not a tensor of libtorch's own: the communicator knows this memory.
  CADRE_ASSIGN_OR_RETURN(const std::shared_ptr<void> memory, communicator_->AllocateBuffer(bytes));
  return at::for_blob(memory.get(), {count()})
      .deleter([memory, device = options.device()](void*) { Free(memory, device); })
      .options(options)
      .target_device(options.device())
      .make_tensor();
}

Status DeviceRoute::Allocate(const torch::Tensor& like) {
  const auto options = like.options().requires_grad(false);
  CADRE_ASSIGN_OR_RETURN(flat_, MakeFlat(options));
  const torch::ScalarType sent_as = TypeSent(average_, like.scalar_type());
  if (sent_as != like.scalar_type()) {
    CADRE_ASSIGN_OR_RETURN(narrow_, MakeFlat(options.dtype(sent_as)));
  }
  if (non_finite_ != NonFinite::kIgnore) {
    checks_.Uses(sent());
    const DeviceStream::Scope on(checks_);
    finite_.emplace(&checks_, sent(), /*sticky=*/non_finite_ == NonFinite::kError);
  }
  return OkStatus();
}

void DeviceRoute::Free(std::shared_ptr<void> memory, torch::Device device) {
  try {
    const DevicePoint given(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    const auto until = std::chrono::steady_clock::now() + kLastDeviceWait;
    const Status done = Await(given, [until] { return std::chrono::steady_clock::now() > until; });
    if (!done.ok()) new std::shared_ptr<void>(std::move(memory));
  } catch (const std::exception&) {
    // A device that has failed reads nothing.
  }
}

// Behind what was waited for, and before the stream goes on.
void DeviceRoute::Look() {
  if (finite_ && weight_ > 0 && sent().numel() > 0) {
    finite_->Look(sent());
    checks_.CurrentWaits();
  }
}

void DeviceRoute::Send(const std::vector<int>& marks, double weight) {
  const DeviceStream::Scope on(*stream_);
  saved_.clear();
  weight_ = weight;
  if (!narrow_.defined()) Look();
  if (communicator_ != nullptr) {
    Save(marks);
    Weigh(weight);
  }
  if (average_.limit) flat_.clamp_(-*average_.limit, *average_.limit);
  if (narrow_.defined()) {
    narrow_.copy_(flat_);
    checks_.WaitFor(*stream_->Current());
    Look();
  }
  if (communicator_ == nullptr) return;
  torch::Tensor sent = this->sent();
  const Reduction average = AverageOf(sent, communicator_->size());
  work_ = communicator_->AllReduce(BufferOfFlat(sent), average);
}

void DeviceRoute::Save(const std::vector<int>& marks) {
  for (size_t m = 0; m < members_.size(); ++m) {
    if (marks[m] == 0) saved_.push_back({m, View(m).clone()});
  }
}

Status DeviceRoute::Hand(const std::vector<int>& marks, const std::function<bool()>& cancelled) {
  const bool skips = non_finite_ == NonFinite::kSkip;
  // What was found in an earlier step is none of this one's where it was not looked for again.
  if (finite_ && (!skips || weight_ > 0)) {
    if (skips) {
      const Status there = Await(finite_->looked(), cancelled);
      if (!there.ok()) return there;
    }
    if (const auto element = finite_->found()) reducer_.MarkNotFinite(ParameterAt(*element));
  }
  return MarkReady(marks);
}

void DeviceRoute::Fetch(const StepReport& report) {
  const DeviceStream::Scope on(*stream_);
  if (narrow_.defined()) flat_.copy_(narrow_);
  if (communicator_ == nullptr) return;
  const double rest = RestOfAverage(report, communicator_->size());
  if (rest != 1) flat_.mul_(rest);
  for (const Saved& saved : saved_) {
    if (!report.used[members_[saved.member].parameter]) View(saved.member).copy_(saved.content);
  }
}

Status DeviceRoute::CheckHealth() {
  if (work_ == nullptr || !work_->done()) return OkStatus();
  return work_->Wait(std::chrono::nanoseconds(0));
}

}  // namespace

Result<std::unique_ptr<GradientRoute>> MakeDeviceRoute(Reducer* reducer, DeviceStream* stream,
                                                       std::vector<RouteMember> members,
                                                       const torch::Tensor& like,
                                                       const DeviceRouteOptions& options) {
  auto route = std::make_unique<DeviceRoute>(reducer, stream, std::move(members), options);
  CADRE_RETURN_IF_ERROR(route->Allocate(like));
  return std::unique_ptr<GradientRoute>(std::move(route));
}

}  // namespace cadre::nn
