#include "worker_runtime/reduce/gradient_readiness.h"

namespace cadre::reduce {

void GradientReadiness::BeginStep() {
  times_ready_.assign(times_ready_.size(), 0);
  any_ = false;
  order_.clear();
  in_order_.assign(in_order_.size(), false);
}

void GradientReadiness::Note(size_t i) {
  if (in_order_[i]) return;
  in_order_[i] = true;
  order_.push_back(i);
}

bool GradientReadiness::Mark(size_t i) {
  any_ = true;
  Note(i);
  ++times_ready_[i];
  return IsComplete(i);
}

std::vector<size_t> GradientReadiness::Missing() const {
  std::vector<size_t> missing;
  for (size_t i = 0; i < times_ready_.size() && !counts_only_; ++i) {
    if (times_ready_[i] < expected_[i]) missing.push_back(i);
  }
  return missing;
}

void GradientReadiness::LearnGraph() {
  if (!counts_only_) return;
  expected_ = times_ready_;
  counts_only_ = false;
}

}  // namespace cadre::reduce
