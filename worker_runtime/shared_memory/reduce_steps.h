// Reductions over shared memory: what lies in an allocation of all ranks is reduced where it is,
// each rank computing its slice; everything else goes through the staging halves.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_REDUCE_STEPS_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_REDUCE_STEPS_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "worker_runtime/communicator.h"
#include "worker_runtime/shared_memory/ground.h"

namespace cadre {

// All-reduce, and reduce to one rank.
class ReduceSteps {
 public:
  // `root` -1: to all.
  ReduceSteps(const Buffer& buffer, const Reduction& reduction, int root);

  void Begin(Ground& ground);
  absl::StatusOr<bool> Next(Ground& ground);

 private:
  enum class State { kPublished, kStaged, kReduced, kInPlace };

  absl::StatusOr<bool> Choose(Ground& ground);
  void ReduceInPlace(Ground& ground);
  void ReduceStaged(Ground& ground);
  void CopyIn(Ground& ground);
  bool CopyOut(Ground& ground);
  size_t PieceCount() const;
  char* At(size_t element) const { return static_cast<char*>(buffer_.data) + element * element_; }

  Buffer buffer_;
  Reduction reduction_;
  int root_;
  size_t element_;
  size_t done_ = 0;  // elements
  bool is_shared_ = false;
  State state_ = State::kPublished;
};

class ReduceScatterSteps {
 public:
  ReduceScatterSteps(const Buffer& input, const Buffer& output, const Reduction& reduction);

  void Begin(Ground& ground);
  absl::StatusOr<bool> Next(Ground& ground);

 private:
  // Of a rank's part, as many as may be staged for each rank at a time.
  size_t PieceCount(const Ground& ground) const;
  void CopyIn(Ground& ground);
  void Reduce(Ground& ground, bool in_place);

  Buffer input_;
  Buffer output_;
  Reduction reduction_;
  size_t element_;
  size_t done_ = 0;  // elements of the output
  bool is_shared_ = false;
  bool compared_ = false;
  bool last_ = false;
};

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_REDUCE_STEPS_H_
