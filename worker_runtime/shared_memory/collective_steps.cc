// The steps of reductions and copies over shared memory, and the context they work in.
#include "worker_runtime/shared_memory/collective_steps.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"

namespace cadre::shared_memory {
namespace {

// Slices begin on cache lines, so that no two ranks write to the same line.
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

// Returns the rank whose staging memory gets the reduced slice of `rank`, in place of an input of
// it.
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
      // Ranks with private buffers have staged already; those with shared ones did not know they
      // had to.
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
  // The outputs are in rank order, so that the reduction of two ranks can work in place.
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

BroadcastSteps::BroadcastSteps(const Buffer& buffer, int root)
    : buffer_(buffer), bytes_(buffer.count * SizeOf(buffer.type)), root_(root) {
  call_.kind = Collective::kBroadcast;
  call_.type = buffer.type;
  call_.root = static_cast<uint32_t>(root);
  call_.count = buffer.count;
}

BroadcastSteps BroadcastSteps::Barrier() {
  BroadcastSteps steps(Buffer{}, 0);
  steps.call_.kind = Collective::kBarrier;
  return steps;
}

void BroadcastSteps::Begin(CollectiveContext& context) {
  is_shared_ = Publish(context, call_, 1, static_cast<char*>(buffer_.data), bytes_);
  if (!is_shared_) CopyIn(context);
}

Result<bool> BroadcastSteps::Next(CollectiveContext& context) {
  if (last_) return true;
  if (!compared_) {
    compared_ = true;
    Status agreed = Agree(context);
    if (!agreed.ok()) return agreed;
    const BufferMemory memory = context.agreement.memory;
    if (memory == BufferMemory::kShared) {
      const char* const source = SharedOf(context, root_, bytes_);
      if (context.rank() != root_) memcpy(buffer_.data, source, bytes_);
      last_ = true;
      return false;
    }
    if (memory == BufferMemory::kMixed) {
      // The root may have a shared buffer and not have known that it had to stage.
      if (is_shared_) CopyIn(context);
      return false;
    }
  }
  if (PieceBytes() > 0 && context.rank() != root_) {
    memcpy(static_cast<char*>(buffer_.data) + done_, context.Staging(root_), PieceBytes());
  }
  done_ += PieceBytes();
  ++context.pieces;
  last_ = done_ == bytes_;
  if (!last_) CopyIn(context);
  return false;
}

size_t BroadcastSteps::PieceBytes() const { return std::min(kStagingHalfBytes, bytes_ - done_); }

void BroadcastSteps::CopyIn(CollectiveContext& context) {
  if (PieceBytes() == 0 || context.rank() != root_) return;
  memcpy(context.Staging(root_), static_cast<char*>(buffer_.data) + done_, PieceBytes());
}

GatherSteps::GatherSteps(Collective kind, const Buffer& input, const Buffer& output,
                         Span<const size_t> counts)
    : input_(input), output_(output), offsets_(1, 0) {
  call_.kind = kind;
  call_.type = input.type;
  call_.root = kind == Collective::kAllGatherVarying ? FingerprintOf(counts) : 0;
  call_.count = kind == Collective::kAllGatherVarying ? output.count : input.count;
  for (const size_t count : counts) {
    const size_t bytes = count * SizeOf(input.type);
    longest_ = std::max(longest_, bytes);
    offsets_.push_back(offsets_.back() + bytes);
  }
}

void GatherSteps::Begin(CollectiveContext& context) {
  Publish(context, call_, 1, nullptr, 0);
  CopyIn(context);
}

Result<bool> GatherSteps::Next(CollectiveContext& context) {
  if (last_) return true;
  if (!compared_) {
    compared_ = true;
    Status agreed = Agree(context);
    if (!agreed.ok()) return agreed;
  }
  CopyOut(context);
  done_ = std::min(longest_, done_ + kStagingHalfBytes);
  ++context.pieces;
  last_ = done_ == longest_;
  if (!last_) CopyIn(context);
  return false;
}

size_t GatherSteps::PieceBytes(int rank) const {
  const size_t bytes = offsets_[rank + 1] - offsets_[rank];
  return bytes <= done_ ? 0 : std::min(kStagingHalfBytes, bytes - done_);
}

void GatherSteps::CopyIn(CollectiveContext& context) {
  const size_t bytes = PieceBytes(context.rank());
  if (bytes == 0) return;
  memcpy(context.Staging(context.rank()), static_cast<char*>(input_.data) + done_, bytes);
}

void GatherSteps::CopyOut(CollectiveContext& context) {
  for (int peer = 0; peer < context.size(); ++peer) {
    const size_t bytes = PieceBytes(peer);
    if (bytes == 0) continue;
    memcpy(static_cast<char*>(output_.data) + offsets_[peer] + done_, context.Staging(peer), bytes);
  }
}

namespace {

Status CheckSame(const CollectiveContext& context) {
  const ControlBlock& first = context.barrier->block(0);
  for (int rank = 1; rank < context.size(); ++rank) {
    const ControlBlock& block = context.barrier->block(rank);
    if (block.call == first.call) continue;
    return InvalidArgumentError(absl::StrCat("the ranks made different calls as collective ",
                                             block.operations(), ": rank 0 ", Describe(first.call),
                                             ", rank ", rank, " ", Describe(block.call)));
  }
  return OkStatus();
}

BufferMemory MemoryOfAllRanks(const CollectiveContext& context) {
  const ControlBlock& first = context.barrier->block(0);
  bool all_alike = true, any_shared = false;
  for (int rank = 0; rank < context.size(); ++rank) {
    const ControlBlock& block = context.barrier->block(rank);
    any_shared = any_shared || block.allocation != kNotRegistered;
    all_alike = all_alike && block.allocation == first.allocation && block.offset == first.offset;
  }
  if (!any_shared) return BufferMemory::kPrivate;
  return all_alike ? BufferMemory::kShared : BufferMemory::kMixed;
}

Status AgreeAnew(CollectiveContext& context) {
  Status same = CheckSame(context);
  if (!same.ok()) return same;
  Agreement& agreement = context.agreement;
  ++agreement.number;
  agreement.memory = MemoryOfAllRanks(context);
  agreement.factors.resize(context.size());
  agreement.versions.clear();
  for (const ControlBlock* other : context.barrier->others()) {
    agreement.versions.push_back(other->version);
  }
  agreement.is_current = true;
  agreement.is_scaled = false;
  for (int rank = 0; rank < context.size(); ++rank) {
    const ControlBlock& block = context.barrier->block(rank);
    agreement.factors[rank] = block.factor;
    agreement.is_scaled = agreement.is_scaled || block.factor != 1;
  }
  return OkStatus();
}

}  // namespace

bool Publish(CollectiveContext& context, const CollectiveCall& call, double factor, char* shared,
             size_t bytes) {
  ControlBlock& block = context.barrier->own();
  const bool is_shared = bytes > 0 && context.allocations->Find(shared, bytes, &context.allocation);
  const uint32_t allocation = is_shared ? context.allocation.number : kNotRegistered;
  const uint64_t offset = is_shared ? shared - context.allocation.base : 0;
  context.barrier->BeginOperation();
  if (block.allocation == allocation && block.offset == offset && block.factor == factor &&
      block.call == call) {
    return is_shared;
  }
  context.agreement.is_current = false;
  ++block.version;
  block.allocation = allocation;
  block.offset = offset;
  block.factor = factor;
  block.call = call;
  return is_shared;
}

char* SharedOf(const CollectiveContext& context, int rank, size_t bytes) {
  const SharedSegment& segment = *context.allocation.segments->at(rank);
  const uint64_t offset = context.barrier->own().offset;
  CADRE_CHECK(offset <= segment.size() && bytes <= segment.size() - offset, "rank ", rank,
              " has allocated ", segment.size(), " bytes, not ", offset + bytes);
  return segment.data() + offset;
}

Status Agree(CollectiveContext& context) {
  return StillAgree(context) ? OkStatus() : AgreeAnew(context);
}

}  // namespace cadre::shared_memory
