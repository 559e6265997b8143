#include "worker_runtime/reduce/gradient_readiness.h"

namespace cadre::reduce {

void GradientReadiness::BeginStep() {
  marks_.assign(marks_.size(), 0);
  order_.clear();
}

bool GradientReadiness::Mark(size_t i) {
  if (++marks_[i] == 1) order_.push_back(i);
  return IsComplete(i);
}

std::vector<size_t> GradientReadiness::Missing() const {
  std::vector<size_t> missing;
  for (size_t i = 0; i < marks_.size() && !counts_only_; ++i) {
    if (marks_[i] < expected_[i]) missing.push_back(i);
  }
  return missing;
}

void GradientReadiness::LearnGraph() {
  if (!counts_only_) return;
  expected_ = marks_;
  counts_only_ = false;
}

}  // namespace cadre::reduce
