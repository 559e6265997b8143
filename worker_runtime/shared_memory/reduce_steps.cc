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

// Whose staging room gets the reduced slice of `rank`: where an input of it lay.
int ResultPlace(int rank, int ranks) { return (rank + 1) % ranks; }

void Copy(char* to, const char* from, size_t bytes) {
  if (bytes > 0) memcpy(to, from, bytes);
}

CollectiveWord Word(Collective kind, const Buffer& buffer, ReduceOp op, int root) {
  CollectiveWord word;
  word.kind = kind;
  word.type = buffer.type;
  word.op = op;
  word.root = static_cast<uint32_t>(std::max(root, 0));
  word.count = buffer.count;
  return word;
}

}  // namespace

void ReduceSteps::BeginAnew(Ground& ground) {
  const Collective kind = root_ < 0 ? Collective::kAllReduce : Collective::kReduce;
  is_shared_ = Publish(ground, Word(kind, buffer_, reduction_.op, root_), reduction_.premultiply,
                       At(0), buffer_.count * ElementBytes());
  if (!is_shared_) CopyIn(ground);
}

absl::StatusOr<bool> ReduceSteps::NextAnew(Ground& ground) {
  switch (state_) {
    case State::kPublished:
      return Choose(ground);
    case State::kStaged:
      ReduceStaged(ground);
      return false;
    case State::kReduced:
      return CopyOut(ground);
    case State::kInPlace:
      return true;
  }
  return true;
}

absl::StatusOr<bool> ReduceSteps::Choose(Ground& ground) {
  absl::Status agreed = Agree(ground);
  if (!agreed.ok()) return agreed;
  switch (ground.agreement.places) {
    case Places::kShared:
      ReduceInPlace(ground);
      break;
    case Places::kMixed:
      // Some staged already, some did not know that they had to.
      if (is_shared_) CopyIn(ground);
      state_ = State::kStaged;
      break;
    case Places::kPrivate:
      ReduceStaged(ground);
      break;
  }
  return false;
}

void ReduceSteps::ReduceInPlace(Ground& ground) {
  if (!IsPrepared(ground)) PrepareInPlace(ground);
  ReduceElements(ground.in_place.elements);
  state_ = State::kInPlace;
}

void ReduceSteps::PrepareInPlace(Ground& ground) const {
  InPlaceReduction& in_place = ground.in_place;
  const int ranks = ground.size();
  const Range slice = SliceOf(ground.rank(), ranks, buffer_.count);
  in_place.agreement = ground.agreement.number;
  in_place.data = buffer_.data;
  in_place.count = buffer_.count;
  in_place.factor = reduction_.premultiply;
  in_place.root = root_;
  in_place.slices.clear();
  for (const auto& segment : *ground.allocation.segments) {
    in_place.slices.push_back(segment->data() + ground.meeting->own().offset +
                              slice.begin * ElementBytes());
  }
  char* const* const slices = in_place.slices.data();
  in_place.elements.type = buffer_.type;
  in_place.elements.op = reduction_.op;
  in_place.elements.inputs = slices;
  in_place.elements.factors = ground.agreement.scaling();
  in_place.elements.ranks = ranks;
  in_place.elements.outputs = root_ < 0 ? slices : &slices[root_];
  in_place.elements.output_count = root_ < 0 ? ranks : 1;
  in_place.elements.count = slice.end - slice.begin;
}

size_t ReduceSteps::PieceCount() const {
  return std::min(kStagingHalfBytes / ElementBytes(), buffer_.count - done_);
}

void ReduceSteps::CopyIn(Ground& ground) {
  const int rank = ground.rank();
  const Range own = SliceOf(rank, ground.size(), PieceCount());
  char* const staging = ground.Staging(rank);
  Copy(staging, At(done_), own.begin * ElementBytes());
  Copy(staging + own.end * ElementBytes(), At(done_ + own.end),
       (PieceCount() - own.end) * ElementBytes());
}

void ReduceSteps::ReduceStaged(Ground& ground) {
  const int ranks = ground.size(), rank = ground.rank();
  const Range slice = SliceOf(rank, ranks, PieceCount());
  char* inputs[kMaxSharedMemoryRanks];
  for (int peer = 0; peer < ranks; ++peer) {
    inputs[peer] = peer == rank ? At(done_ + slice.begin)
                                : ground.Staging(peer) + slice.begin * ElementBytes();
  }
  ElementReduction call;
  call.type = buffer_.type;
  call.op = reduction_.op;
  call.inputs = inputs;
  call.factors = ground.agreement.scaling();
  call.ranks = ranks;
  // In rank order, so that two ranks' memory is reduced where it is.
  char* outputs[2];
  const int place = ResultPlace(rank, ranks);
  for (const int output : {std::min(rank, place), std::max(rank, place)}) {
    const bool is_wanted = root_ < 0 || (output == rank) == (root_ == rank);
    if (is_wanted) outputs[call.output_count++] = inputs[output];
  }
  call.outputs = outputs;
  call.count = slice.end - slice.begin;
  ReduceElements(call);
  state_ = State::kReduced;
}

bool ReduceSteps::CopyOut(Ground& ground) {
  const int ranks = ground.size(), rank = ground.rank();
  for (int peer = 0; peer < ranks && (root_ < 0 || root_ == rank); ++peer) {
    if (peer == rank) continue;
    const Range slice = SliceOf(peer, ranks, PieceCount());
    Copy(At(done_ + slice.begin),
         ground.Staging(ResultPlace(peer, ranks)) + slice.begin * ElementBytes(),
         (slice.end - slice.begin) * ElementBytes());
  }
  done_ += PieceCount();
  ++ground.pieces;
  if (done_ == buffer_.count) return true;
  CopyIn(ground);
  state_ = State::kStaged;
  return false;
}

ReduceScatterSteps::ReduceScatterSteps(const Buffer& input, const Buffer& output,
                                       const Reduction& reduction)
    : input_(input), output_(output), reduction_(reduction), element_(SizeOf(input.type)) {}

void ReduceScatterSteps::Begin(Ground& ground) {
  is_shared_ =
      Publish(ground, Word(Collective::kReduceScatter, output_, reduction_.op, 0),
              reduction_.premultiply, static_cast<char*>(input_.data), input_.count * element_);
  if (!is_shared_) CopyIn(ground);
}

absl::StatusOr<bool> ReduceScatterSteps::Next(Ground& ground) {
  if (last_) return true;
  if (!compared_) {
    compared_ = true;
    absl::Status agreed = Agree(ground);
    if (!agreed.ok()) return agreed;
    const Places places = ground.agreement.places;
    if (places == Places::kShared) {
      Reduce(ground, /*in_place=*/true);
      last_ = true;
      return false;
    }
    if (places == Places::kMixed) {
      if (is_shared_) CopyIn(ground);
      return false;
    }
  }
  Reduce(ground, /*in_place=*/false);
  done_ += PieceCount(ground);
  ++ground.pieces;
  last_ = done_ == output_.count;
  if (!last_) CopyIn(ground);
  return false;
}

size_t ReduceScatterSteps::PieceCount(const Ground& ground) const {
  return std::min(kStagingHalfBytes / element_ / ground.size(), output_.count - done_);
}

void ReduceScatterSteps::CopyIn(Ground& ground) {
  const size_t bytes = PieceCount(ground) * element_;
  if (bytes == 0) return;
  const char* const input = static_cast<const char*>(input_.data) + done_ * element_;
  for (int peer = 0; peer < ground.size(); ++peer) {
    if (peer == ground.rank()) continue;
    memcpy(ground.Staging(ground.rank()) + peer * bytes, input + peer * output_.count * element_,
           bytes);
  }
}

void ReduceScatterSteps::Reduce(Ground& ground, bool in_place) {
  const int ranks = ground.size(), rank = ground.rank();
  char* inputs[kMaxSharedMemoryRanks];
  for (int peer = 0; peer < ranks; ++peer) {
    inputs[peer] = in_place ? (*ground.allocation.segments)[peer]->data() +
                                  ground.meeting->own().offset + rank * output_.count * element_
                            : ground.Staging(peer) + rank * PieceCount(ground) * element_;
  }
  if (!in_place) {
    inputs[rank] = static_cast<char*>(input_.data) + (rank * output_.count + done_) * element_;
  }
  char* output = static_cast<char*>(output_.data) + (in_place ? 0 : done_ * element_);
  ElementReduction call;
  call.type = input_.type;
  call.op = reduction_.op;
  call.inputs = inputs;
  call.factors = ground.agreement.scaling();
  call.ranks = ranks;
  call.outputs = &output;
  call.output_count = 1;
  call.count = in_place ? output_.count : PieceCount(ground);
  ReduceElements(call);
}

}  // namespace cadre::shared_memory
