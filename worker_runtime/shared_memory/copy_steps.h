// Collectives over shared memory that only copy: some ranks stage a piece, all read it. After the
// last piece there is one more barrier, so that no control block changes while another rank still
// compares. A buffer that lies in an allocation of all ranks is copied from there.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_COPY_STEPS_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_COPY_STEPS_H_

#include <cstddef>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/span.h"
#include "worker_runtime/shared_memory/collective_context.h"

namespace cadre::shared_memory {

// Broadcast, and with nothing to copy: barrier.
class BroadcastSteps {
 public:
  BroadcastSteps(const Buffer& buffer, int root);
  static BroadcastSteps Barrier();

  void Begin(CollectiveContext& context);
  Result<bool> Next(CollectiveContext& context);

 private:
  size_t PieceBytes() const;
  void CopyIn(CollectiveContext& context);

  CollectiveCall call_;
  Buffer buffer_;
  size_t bytes_;
  int root_;
  size_t done_ = 0;  // bytes
  bool is_shared_ = false;
  bool compared_ = false;
  bool last_ = false;
};

// All-gather of equal and of varying parts.
class GatherSteps {
 public:
  GatherSteps(Collective kind, const Buffer& input, const Buffer& output,
              Span<const size_t> counts);

  void Begin(CollectiveContext& context);
  Result<bool> Next(CollectiveContext& context);

 private:
  // Of what `rank` gives, in this piece.
  size_t PieceBytes(int rank) const;
  void CopyIn(CollectiveContext& context);
  void CopyOut(CollectiveContext& context);

  CollectiveCall call_;
  Buffer input_;
  Buffer output_;
  std::vector<size_t> offsets_;  // bytes, of each rank's part, and the end
  size_t longest_ = 0;           // bytes
  size_t done_ = 0;              // bytes of the longest part
  bool compared_ = false;
  bool last_ = false;
};

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_COPY_STEPS_H_
