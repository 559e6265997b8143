#include "cadre/torch/recomputation.h"

#include <mutex>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "torch/csrc/autograd/engine.h"

namespace cadre::nn {
namespace {

thread_local int recomputing = 0;

// libtorch hands such information to each thread that works for a backward pass. A number until
// 2.10 or so, then an address.
template <typename Kind>
Kind RecomputationKind() {
  if constexpr (std::is_enum_v<Kind>) {
    return static_cast<Kind>(0xCA);
  } else {
    static constexpr std::string_view kName = "cadre::nn::InnerBackward";
    return Kind(&kName);
  }
}

}  // namespace

// Of one inner pass, from all of its threads.
class InnerBackward::Callbacks : public c10::DebugInfoBase {
 public:
  void Add(std::function<void()> callback) {
    const std::lock_guard<std::mutex> lock(mutex_);
    callbacks_.push_back(std::move(callback));
  }
  std::vector<std::function<void()>> Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(callbacks_, {});
  }
  // Of the inner pass that the calling thread works for; null: it works for none.
  static Callbacks* Current() {
    return static_cast<Callbacks*>(
        c10::ThreadLocalDebugInfo::get(RecomputationKind<c10::DebugInfoKind>()));
  }

 private:
  std::mutex mutex_;
  std::vector<std::function<void()>> callbacks_;
};

void AtBackwardEnd(std::function<void()> callback) {
  if (auto* const inner = InnerBackward::Callbacks::Current()) {
    inner->Add(std::move(callback));
  } else {
    torch::autograd::Engine::get_default_engine().queue_callback(std::move(callback));
  }
}

bool IsRecomputing() { return recomputing > 0; }

Recomputing::Recomputing() { ++recomputing; }
Recomputing::~Recomputing() { --recomputing; }

InnerBackward::InnerBackward()
    : callbacks_(std::make_shared<Callbacks>()),
      guard_(std::make_unique<c10::DebugInfoGuard>(RecomputationKind<c10::DebugInfoKind>(),
                                                   callbacks_)) {}

void InnerBackward::End() {
  guard_.reset();
  for (std::function<void()>& callback : callbacks_->Take()) AtBackwardEnd(std::move(callback));
}

}  // namespace cadre::nn
