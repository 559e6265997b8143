#include "worker_runtime/reduce/gradient_readiness.h"

namespace cadre::reduce {

void GradientReadiness::BeginStep() {
  times_ready_.assign(times_ready_.size(), 0);
  order_.clear();
}

bool GradientReadiness::Mark(size_t i) {
  if (++times_ready_[i] == 1) order_.push_back(i);
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
