#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "cadre/torch/finite_check.h"
#include "cadre/torch/gradient_route.h"
#include "cadre/torch/tensors.h"
#include "cadre/wait_or_abort.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

// How often a thread that waits for the other ranks looks whether it is still to.
constexpr std::chrono::milliseconds kLookInterval{50};

class OwnerRoute : public GradientRoute {
 public:
  OwnerRoute(Reducer* reducer, DeviceStream* stream, std::vector<RouteMember> members,
             std::vector<torch::Tensor> parameters, const OwnerRouteOptions& options)
      : GradientRoute(reducer, stream, std::move(members)),
        parameters_(std::move(parameters)),
        options_(options),
        mine_(options.host->rank() == options.owner) {
    if (options_.non_finite == NonFinite::kIgnore || count() == 0) return;
    const torch::Tensor& like = parameters_.front();
    if (options_.device == nullptr) {
      finite_.emplace(&on_host_, torch::empty({0}, ReducedType(like.scalar_type())), false);
      return;
    }
    const DeviceStream::Scope on(*options_.checks);
    finite_.emplace(options_.checks, like, options_.non_finite == NonFinite::kError);
  }
  ~OwnerRoute() override {
    // All ranks have sent, and somebody may still use the result.
    if (work_ != nullptr) (void)work_->Wait(kLastDeviceWait);
  }

  size_t bytes_on_devices() const override {
    const bool on_device = options_.device != nullptr;
    return on_device ? static_cast<size_t>(count()) * parameters_.front().element_size() : 0;
  }

  void Send(const std::vector<int>& marks, double weight) override {
    const DeviceStream::Scope on(*stream_);
    Pack(marks);
    weight_ = weight;
    if (options_.device == nullptr) return;
    if (finite_ && weight > 0) LookOnDevice();
    Weigh(weight);
    Start(*options_.device);
    // What is freed is not used again before the stream has come here.
    if (!mine_) flat_ = torch::Tensor();
  }

  Status Hand(const std::vector<int>& marks, const std::function<bool()>& cancelled) override {
    const torch::NoGradGuard no_grad;
    Status status;
    if (options_.device == nullptr) {
      status = ReduceByHost(cancelled);
    } else if (finite_ && options_.non_finite == NonFinite::kSkip) {
      status = Await(finite_->looked(), cancelled);
    }
    if (!status.ok()) return status;
    if (finite_ && weight_ > 0) {
      if (const auto element = finite_->found()) reducer_.MarkNotFinite(ParameterAt(*element));
    }
    return MarkReady(marks);
  }

  void Fetch(const StepReport& report) override {
    if (mine_ && flat_.defined()) Average(report);
    for (size_t m = 0; m < members_.size(); ++m) {
      // What no rank used stays.
      if (!report.used[members_[m].parameter]) continue;
      parameters_[m].mutable_grad() = mine_ ? View(m) : torch::Tensor();
    }
    flat_ = torch::Tensor();
  }

  Status CheckHealth() override {
    if (options_.device == nullptr || work_ == nullptr || !work_->done()) return OkStatus();
    return work_->Wait(std::chrono::nanoseconds(0));
  }

 private:
  // What became ready is taken away; what did not counts as what it holds, and stays until it is
  // known whether another rank had it.
  void Pack(const std::vector<int>& marks) {
    std::vector<torch::Tensor> parts;
    for (size_t m = 0; m < members_.size(); ++m) {
      const torch::Tensor& parameter = parameters_[m];
      torch::Tensor& grad = parameters_[m].mutable_grad();
      if (!grad.defined()) {
        parts.push_back(
            torch::zeros({members_[m].count}, parameter.options().requires_grad(false)));
        continue;
      }
      stream_->Uses(grad);
      parts.push_back(grad.detach().reshape({-1}));
      if (marks[m] > 0) grad = torch::Tensor();
    }
    flat_ = torch::cat(parts);
  }

  void LookOnDevice() {
    options_.checks->WaitFor(*stream_->Current());
    options_.checks->Uses(flat_);
    finite_->Look(flat_);
    options_.checks->CurrentWaits();
  }

  void Start(Communicator& communicator) {
    if (flat_.numel() == 0) return;
    const Reduction average = AverageOf(flat_, communicator.size());
    work_ = communicator.Reduce(BufferOfFlat(flat_), average, options_.owner);
  }

  Status ReduceByHost(const std::function<bool()>& cancelled) {
    {
      // Waits for the device.
      const DeviceStream::Scope on(*stream_);
      flat_ = flat_.to(torch::kCPU, ReducedType(flat_.scalar_type()));
    }
    if (finite_ && weight_ > 0) finite_->Look(flat_);
    if (options_.host->size() == 1) return OkStatus();
    Weigh(weight_);
    Start(*options_.host);
    if (work_ == nullptr) return OkStatus();
    while (!work_->done()) {
      if (cancelled()) {
        options_.host->Abort();
        return work_->Wait(kAbortGrace);
      }
      (void)work_->Wait(kLookInterval);
    }
    const Status reduced = work_->Wait(std::chrono::nanoseconds(0));
    if (!mine_) flat_ = torch::Tensor();
    return reduced;
  }

  void Average(const StepReport& report) {
    const torch::Tensor& like = parameters_.front();
    {
      const DeviceStream::Scope on(*stream_);
      flat_ = flat_.to(like.device(), like.scalar_type());
      const int ranks = options_.host->size();
      const double rest = ranks > 1 ? RestOfAverage(report, ranks) : 1;
      if (rest != 1) flat_.mul_(rest);
    }
    // The optimizer's stream uses what this one made.
    stream_->CurrentUses(flat_);
  }

  torch::Tensor View(size_t m) const {
    return PartOf(flat_, members_[m].offset, parameters_[m].sizes());
  }

  std::vector<torch::Tensor> parameters_;
  const OwnerRouteOptions options_;
  const bool mine_;
  const DeviceStream on_host_{torch::kCPU};
  std::optional<FiniteCheck> finite_;
  double weight_ = 1;
  std::shared_ptr<Work> work_;
};

}  // namespace

std::unique_ptr<GradientRoute> MakeOwnerRoute(Reducer* reducer, DeviceStream* stream,
                                              std::vector<RouteMember> members,
                                              std::vector<torch::Tensor> parameters,
                                              const OwnerRouteOptions& options) {
  return std::make_unique<OwnerRoute>(reducer, stream, std::move(members), std::move(parameters),
                                      options);
}

}  // namespace cadre::nn
