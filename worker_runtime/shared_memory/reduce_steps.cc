#include "worker_runtime/shared_memory/reduce_steps.h"

#include <algorithm>
#include <cstring>

#include "worker_runtime/shared_memory/limits.h"

namespace cadre::shared_memory {
namespace {

// Slices start on cache lines, so that two ranks never write to one.
constexpr size_t kSliceElements = 64;

struct Range {
  size_t begin = 0;
  size_t end = 0;
};

Range SliceOf(int rank, int ranks, size_t count) {
  const size_t even = (count + ranks - 1) / ranks;
  const size_t size = (even + kSliceElements - 1) / kSliceElements * kSliceElements;
  return {std::min(count, size * rank), std::min(count, size * (rank + 1))};
}

// The rank whose staging memory gets the reduced slice of `rank`: an input of it lay there.
int StagingRankOfResult(int rank, int ranks) { return (rank + 1) % ranks; }

void Copy(char* to, const char* from, size_t bytes) {
  if (bytes > 0) memcpy(to, from, bytes);
}

CollectiveCall CallOf(Collective kind, const Buffer& buffer, ReduceOp op, int root) {
  CollectiveCall call;
  call.kind = kind;
  call.type = buffer.type;
  call.op = op;
  call.root = static_cast<uint32_t>(std::max(root, 0));
  call.count = buffer.count;
  return call;
}

}  // namespace

void ReduceSteps::BeginAnew(CollectiveContext& context) {
  const Collective kind = root_ < 0 ? Collective::kAllReduce : Collective::kReduce;
  is_shared_ = Publish(context, CallOf(kind, buffer_, reduction_.op, root_), reduction_.premultiply,
                       At(0), buffer_.count * ElementBytes());
  if (!is_shared_) CopyIn(context);
}

Result<bool> ReduceSteps::NextAnew(CollectiveContext& context) {
  switch (state_) {
    case State::kPublished:
      return Choose(context);
    case State::kStaged:
      ReduceStaged(context);
      return false;
    case State::kReduced:
      return CopyOut(context);
    case State::kInPlace:
      return true;
  }
  return true;
}

Result<bool> ReduceSteps::Choose(CollectiveContext& context) {
  Status agreed = Agree(context);
  if (!agreed.ok()) return agreed;
  switch (context.agreement.memory) {
    case BufferMemory::kShared:
      ReduceInPlace(context);
      break;
    case BufferMemory::kMixed:
      // Some staged already, some did not know that they had to.
      if (is_shared_) CopyIn(context);
      state_ = State::kStaged;
      break;
    case BufferMemory::kPrivate:
      ReduceStaged(context);
      break;
  }
  return false;
}

void ReduceSteps::ReduceInPlace(CollectiveContext& context) {
  if (!IsPrepared(context)) PrepareInPlace(context);
  ReduceElements(context.in_place.elements);
  state_ = State::kInPlace;
}

void ReduceSteps::PrepareInPlace(CollectiveContext& context) const {
  InPlaceReduction& in_place = context.in_place;
  const int ranks = context.size();
  const Range slice = SliceOf(context.rank(), ranks, buffer_.count);
  in_place.agreement = context.agreement.number;
  in_place.data = buffer_.data;
  in_place.count = buffer_.count;
  in_place.factor = reduction_.premultiply;
  in_place.root = root_;
  in_place.slices.clear();
  for (int peer = 0; peer < ranks; ++peer) {
    in_place.slices.push_back(SharedOf(context, peer, buffer_.count * ElementBytes()) +
                              slice.begin * ElementBytes());
  }
  char* const* const slices = in_place.slices.data();
  in_place.elements.type = buffer_.type;
  in_place.elements.op = reduction_.op;
  in_place.elements.inputs = slices;
  in_place.elements.factors = context.agreement.scaling();
  in_place.elements.ranks = ranks;
  in_place.elements.outputs = root_ < 0 ? slices : &slices[root_];
  in_place.elements.output_count = root_ < 0 ? ranks : 1;
  in_place.elements.count = slice.end - slice.begin;
}

size_t ReduceSteps::PieceCount() const {
  return std::min(kStagingHalfBytes / ElementBytes(), buffer_.count - done_);
}

void ReduceSteps::CopyIn(CollectiveContext& context) {
  const int rank = context.rank();
  const Range own = SliceOf(rank, context.size(), PieceCount());
  char* const staging = context.Staging(rank);
  Copy(staging, At(done_), own.begin * ElementBytes());
  Copy(staging + own.end * ElementBytes(), At(done_ + own.end),
       (PieceCount() - own.end) * ElementBytes());
}

void ReduceSteps::ReduceStaged(CollectiveContext& context) {
  const int ranks = context.size(), rank = context.rank();
  const Range slice = SliceOf(rank, ranks, PieceCount());
  char* inputs[kMaxSharedMemoryRanks];
  for (int peer = 0; peer < ranks; ++peer) {
    inputs[peer] = peer == rank ? At(done_ + slice.begin)
                                : context.Staging(peer) + slice.begin * ElementBytes();
  }
  ElementReduction call;
  call.type = buffer_.type;
  call.op = reduction_.op;
  call.inputs = inputs;
  call.factors = context.agreement.scaling();
  call.ranks = ranks;
  // In rank order, so that two ranks' memory is reduced where it is.
  char* outputs[2];
  const int staged = StagingRankOfResult(rank, ranks);
  for (const int output : {std::min(rank, staged), std::max(rank, staged)}) {
    const bool is_wanted = root_ < 0 || (output == rank) == (root_ == rank);
    if (is_wanted) outputs[call.output_count++] = inputs[output];
  }
  call.outputs = outputs;
  call.count = slice.end - slice.begin;
  ReduceElements(call);
  state_ = State::kReduced;
}

bool ReduceSteps::CopyOut(CollectiveContext& context) {
  const int ranks = context.size(), rank = context.rank();
  for (int peer = 0; peer < ranks && (root_ < 0 || root_ == rank); ++peer) {
    if (peer == rank) continue;
    const Range slice = SliceOf(peer, ranks, PieceCount());
    Copy(At(done_ + slice.begin),
         context.Staging(StagingRankOfResult(peer, ranks)) + slice.begin * ElementBytes(),
         (slice.end - slice.begin) * ElementBytes());
  }
  done_ += PieceCount();
  ++context.pieces;
  if (done_ == buffer_.count) return true;
  CopyIn(context);
  state_ = State::kStaged;
  return false;
}

ReduceScatterSteps::ReduceScatterSteps(Collective kind, const Buffer& input, const Buffer& output,
                                       Span<const size_t> counts, const Reduction& reduction)
    : input_(input), output_(output), reduction_(reduction), element_(SizeOf(input.type)) {
  const bool varies = kind == Collective::kReduceScatterVarying;
  call_ = CallOf(kind, varies ? input : output, reduction.op, 0);
  if (varies) call_.root = FingerprintOf(counts);
  for (const size_t count : counts) {
    longest_ = std::max(longest_, count);
    begins_.push_back(begins_.back() + count);
  }
}

void ReduceScatterSteps::Begin(CollectiveContext& context) {
  is_shared_ = Publish(context, call_, reduction_.premultiply, static_cast<char*>(input_.data),
                       input_.count * element_);
  if (!is_shared_) CopyIn(context);
}

Result<bool> ReduceScatterSteps::Next(CollectiveContext& context) {
  if (last_) return true;
  if (!compared_) {
    compared_ = true;
    Status agreed = Agree(context);
    if (!agreed.ok()) return agreed;
    const BufferMemory memory = context.agreement.memory;
    if (memory == BufferMemory::kShared) {
      Reduce(context, /*in_place=*/true);
      last_ = true;
      return false;
    }
    if (memory == BufferMemory::kMixed) {
      if (is_shared_) CopyIn(context);
      return false;
    }
  }
  Reduce(context, /*in_place=*/false);
  done_ += PieceCount(context);
  ++context.pieces;
  last_ = done_ == longest_;
  if (!last_) CopyIn(context);
  return false;
}

size_t ReduceScatterSteps::PieceCount(const CollectiveContext& context) const {
  return std::min(kStagingHalfBytes / element_ / context.size(), longest_ - done_);
}

size_t ReduceScatterSteps::PieceCountOf(const CollectiveContext& context, int rank) const {
  return Count(rank) <= done_ ? 0 : std::min(PieceCount(context), Count(rank) - done_);
}

void ReduceScatterSteps::CopyIn(CollectiveContext& context) {
  const size_t stride = PieceCount(context) * element_;
  const char* const input = static_cast<const char*>(input_.data);
  for (int peer = 0; peer < context.size(); ++peer) {
    if (peer == context.rank()) continue;
    Copy(context.Staging(context.rank()) + peer * stride,
         input + (begins_[peer] + done_) * element_, PieceCountOf(context, peer) * element_);
  }
}

void ReduceScatterSteps::Reduce(CollectiveContext& context, bool in_place) {
  const int ranks = context.size(), rank = context.rank();
  ElementReduction call;
  call.count = in_place ? output_.count : PieceCountOf(context, rank);
  if (call.count == 0) return;
  char* inputs[kMaxSharedMemoryRanks];
  for (int peer = 0; peer < ranks; ++peer) {
    inputs[peer] = in_place
                       ? SharedOf(context, peer, input_.count * element_) + begins_[rank] * element_
                       : context.Staging(peer) + rank * PieceCount(context) * element_;
  }
  if (!in_place) {
    inputs[rank] = static_cast<char*>(input_.data) + (begins_[rank] + done_) * element_;
  }
  char* output = static_cast<char*>(output_.data) + (in_place ? 0 : done_ * element_);
  call.type = input_.type;
  call.op = reduction_.op;
  call.inputs = inputs;
  call.factors = context.agreement.scaling();
  call.ranks = ranks;
  call.outputs = &output;
  call.output_count = 1;
  ReduceElements(call);
}

}  // namespace cadre::shared_memory
