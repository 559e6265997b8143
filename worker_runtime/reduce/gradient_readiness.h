// Which gradients became ready in a step, how often and in which order, and how often they should.
// With a static graph the first step that this rank has data for counts: all later ones must be the
// same. Otherwise a gradient becomes ready once. Pure.
#ifndef CADRE_WORKER_RUNTIME_REDUCE_GRADIENT_READINESS_H_
#define CADRE_WORKER_RUNTIME_REDUCE_GRADIENT_READINESS_H_

#include <cstddef>
#include <vector>

namespace cadre::reduce {

// One thread at a time.
class GradientReadiness {
 public:
  GradientReadiness(size_t gradients, bool static_graph)
      : counts_only_(static_graph),
        expected_(gradients, 1),
        times_ready_(gradients),
        in_order_(gradients),
        accumulated_(gradients) {}

  // Forgets what became ready in the step before.
  void BeginStep();
  // Whether gradient i may become ready once more.
  bool MayMark(size_t i) const { return counts_only_ || times_ready_[i] < expected_[i]; }
  // Gradient i is there, and is marked later. It stands in order() as if that were now.
  void Note(size_t i);
  // Gradient i became ready; whether it is complete now.
  bool Mark(size_t i);
  // Never while the first step of a static graph is counted: it may become ready once more.
  bool IsComplete(size_t i) const {
    return !counts_only_ && times_ready_[i] > 0 && times_ready_[i] >= expected_[i];
  }
  bool IsMarked(size_t i) const { return times_ready_[i] > 0; }
  bool any() const { return any_; }
  // In which they became ready for the first time.
  const std::vector<size_t>& order() const { return order_; }
  // Those that became ready less often than they should; none while that is not known.
  std::vector<size_t> Missing() const;
  // The first step of a static graph is over, if this is it: as often is expected from now on.
  void LearnGraph();

  // Gradient i became ready in a step that is not reduced; kept until ForgetAccumulated().
  void Accumulate(size_t i) { accumulated_[i] = true; }
  void ForgetAccumulated() { accumulated_.assign(accumulated_.size(), false); }
  // Whether there is anything in gradient i.
  bool IsUsed(size_t i) const { return times_ready_[i] > 0 || accumulated_[i]; }

 private:
  // Until the first step of a static graph is over.
  bool counts_only_;
  std::vector<int> expected_;
  std::vector<int> times_ready_;
  bool any_ = false;
  std::vector<size_t> order_;
  std::vector<bool> in_order_;
  std::vector<bool> accumulated_;
};

}  // namespace cadre::reduce

#endif  // CADRE_WORKER_RUNTIME_REDUCE_GRADIENT_READINESS_H_
