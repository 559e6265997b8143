#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "cadre/torch/gradient_route.h"
#include "cadre/torch/tensors.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

// How often the thread looks whether a device has got there: libtorch 1.13 has no call that waits,
// and CUDA's own spins. Short beside a copy of a bucket.
constexpr std::chrono::microseconds kPollInterval{20};

size_t BytesOf(const Buffer& buffer) { return buffer.count * SizeOf(buffer.type); }

class HostRoute : public GradientRoute {
 public:
  HostRoute(Reducer* reducer, DeviceStream* stream, std::vector<RouteMember> members,
            const torch::Tensor& like)
      : GradientRoute(reducer, stream, std::move(members)) {
    flat_ = torch::zeros({count()}, like.options().requires_grad(false));
    stream_->Uses(flat_);
    host_ = EmptyPinned(like.device(), {count()}, ReducedType(like.scalar_type()));
  }

  void Send(const std::vector<int>&, double) override {
    const DeviceStream::Scope on(*stream_);
    host_.copy_(flat_.to(host_.scalar_type()), /*non_blocking=*/true);
    sent_ = stream_->Here();
  }

  Status Hand(const std::vector<int>& marks, const std::function<bool()>& cancelled) override {
    const Status there = Await(sent_, cancelled);
    if (!there.ok()) return there;
    const char* at = static_cast<const char*>(host_.data_ptr());
    for (size_t m = 0; m < members_.size(); ++m) {
      const size_t parameter = members_[m].parameter;
      const Buffer place = reducer_.Gradient(parameter);
      // One that did not become ready counts as what its place holds.
      if (marks[m] == 0 && BytesOf(place) > 0 && !reducer_.IsMarked(parameter)) {
        std::memcpy(place.data, at, BytesOf(place));
      }
      for (int mark = 0; mark < marks[m]; ++mark) {
        const Status marked = reducer_.MarkReady(parameter, at);
        if (!marked.ok()) return marked;
      }
      at += BytesOf(place);
    }
    return OkStatus();
  }

  void Fetch(const StepReport&) override {
    char* at = static_cast<char*>(host_.data_ptr());
    for (const RouteMember& member : members_) {
      const Buffer place = reducer_.Gradient(member.parameter);
      if (BytesOf(place) > 0) std::memcpy(at, place.data, BytesOf(place));
      at += BytesOf(place);
    }
    const DeviceStream::Scope on(*stream_);
    // To the device first: converted on the host it would not be pinned any more.
    flat_.copy_(host_.to(flat_.device(), /*non_blocking=*/true), true);
  }

 private:
  // What the reducer sees of the flat tensor.
  torch::Tensor host_;
  DevicePoint sent_;
};

}  // namespace

Status GradientRoute::Await(const DevicePoint& point, const std::function<bool()>& cancelled) {
  while (!point.reached()) {
    if (cancelled()) return CancelledError("the gradients are no longer needed");
    std::this_thread::sleep_for(kPollInterval);
  }
  return OkStatus();
}

size_t GradientRoute::ParameterAt(int64_t element) const {
  const auto behind = std::find_if(
      members_.begin(), members_.end(),
      [&](const RouteMember& member) { return element < member.offset + member.count; });
  return (behind == members_.end() ? members_.back() : *behind).parameter;
}

void GradientRoute::Weigh(double weight) {
  if (weight == 0) {
    // Nothing of it counts, whatever it is.
    flat_.zero_();
  } else if (weight != 1) {
    flat_.mul_(weight);
  }
}

double GradientRoute::RestOfAverage(const StepReport& report, int ranks) const {
  return report.weight > 0 ? ranks * reducer_.usual_weight() / report.weight : 1;
}

Status GradientRoute::MarkReady(const std::vector<int>& marks) {
  for (size_t m = 0; m < members_.size(); ++m) {
    for (int mark = 0; mark < marks[m]; ++mark) {
      const Status marked = reducer_.MarkReady(members_[m].parameter);
      if (!marked.ok()) return marked;
    }
  }
  return OkStatus();
}

std::unique_ptr<GradientRoute> MakeHostRoute(Reducer* reducer, DeviceStream* stream,
                                             std::vector<RouteMember> members,
                                             const torch::Tensor& like) {
  return std::make_unique<HostRoute>(reducer, stream, std::move(members), like);
}

}  // namespace cadre::nn
