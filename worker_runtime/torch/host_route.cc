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
    PinBuckets(like.device());
  }
  ~HostRoute() override {
    const auto until = std::chrono::steady_clock::now() + kLastDeviceWait;
    try {
      (void)Await(fetched_, [until] { return std::chrono::steady_clock::now() > until; });
    } catch (const std::exception&) {
      // A device that has failed reads nothing.
    }
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
    if (runs_.empty()) CopyFromBuckets();
    const DeviceStream::Scope on(*stream_);
    // To the device first: converted on the host it would not be pinned any more.
    if (runs_.empty()) flat_.copy_(host_.to(flat_.device(), /*non_blocking=*/true), true);
    for (const Run& run : runs_) {
      flat_.narrow(0, run.offset, run.bucket.numel())
          .copy_(run.bucket.to(flat_.device(), /*non_blocking=*/true), true);
    }
    fetched_ = stream_->Here();
  }

 private:
  // Members that lie side by side in the reducer's bucket, too, which the device reads by itself.
  struct Run {
    int64_t offset = 0;
    torch::Tensor bucket;
    std::shared_ptr<void> pinned;
  };

  void CopyFromBuckets() {
    char* at = static_cast<char*>(host_.data_ptr());
    for (const RouteMember& member : members_) {
      const Buffer place = reducer_.Gradient(member.parameter);
      if (BytesOf(place) > 0) std::memcpy(at, place.data, BytesOf(place));
      at += BytesOf(place);
    }
  }

  // Of all members or of none.
  void PinBuckets(torch::Device device) {
    for (size_t begin = 0; begin < members_.size();) {
      const Buffer first = reducer_.Gradient(members_[begin].parameter);
      char* const memory = static_cast<char*>(first.data);
      size_t end = begin, bytes = 0;
      for (; end < members_.size(); ++end) {
        const Buffer next = reducer_.Gradient(members_[end].parameter);
        if (next.data != memory + bytes) break;
        bytes += BytesOf(next);
      }
      auto pinned = Pin(device, reducer_.Storage(members_[begin].parameter), memory, bytes);
      if (pinned == nullptr) return runs_.clear();
      const auto count = static_cast<int64_t>(bytes / SizeOf(first.type));
      runs_.push_back({members_[begin].offset,
                       torch::from_blob(memory, {count}, torch::dtype(host_.scalar_type())),
                       std::move(pinned)});
      begin = end;
    }
  }

  // What the reducer sees of the flat tensor.
  torch::Tensor host_;
  DevicePoint sent_, fetched_;
  std::vector<Run> runs_;
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
