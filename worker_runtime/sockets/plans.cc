#include "worker_runtime/sockets/plans.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "worker_runtime/shared_memory/reduce_kernels.h"
#include "worker_runtime/sockets/flow.h"

namespace cadre::sockets {
namespace {

// The number of chunks that are in progress at a time.
constexpr int kSlots = 2;

size_t BytesOf(const Buffer& buffer) { return buffer.count * SizeOf(buffer.type); }

// Returns uninitialized memory, as from new[], because untouched pages cost nothing.
std::shared_ptr<char> NewMemory(size_t bytes) {
  return std::shared_ptr<char>(new char[bytes], std::default_delete<char[]>());
}

// The elements of all ranks' parts, each part cut into the same number of chunks.
class Cut {
 public:
  struct Range {
    size_t begin = 0;
    size_t count = 0;
  };

  Cut(Span<const size_t> counts, size_t element_bytes) {
    begins_.push_back(0);
    for (const size_t count : counts) begins_.push_back(begins_.back() + count);
    const size_t largest = *std::max_element(counts.begin(), counts.end());
    const size_t bytes = std::max(kMinChunkBytes, kStepBytes / counts.size());
    chunks_ = static_cast<int>(std::max<size_t>(1, (largest * element_bytes + bytes - 1) / bytes));
    chunk_elements_ = (largest + chunks_ - 1) / chunks_;
  }

  int chunks() const { return chunks_; }
  // An upper bound of the elements in a chunk.
  size_t chunk_elements() const { return chunk_elements_; }
  Range Part(int rank) const { return {begins_[rank], begins_[rank + 1] - begins_[rank]}; }
  Range Chunk(int rank, int chunk) const {
    const Range part = Part(rank);
    const size_t begin = part.count * chunk / chunks_, end = part.count * (chunk + 1) / chunks_;
    return {part.begin + begin, end - begin};
  }

 private:
  std::vector<size_t> begins_;
  int chunks_ = 1;
  size_t chunk_elements_ = 0;
};

std::vector<size_t> EqualParts(size_t count, int size) {
  std::vector<size_t> parts;
  for (size_t i = 0; i < static_cast<size_t>(size); ++i) {
    parts.push_back(count * (i + 1) / size - count * i / size);
  }
  return parts;
}

// Reduces a chunk of this rank's part from all ranks' elements.
class ChunkReduction {
 public:
  ChunkReduction(const Team& team, DataType type, ReduceOp op, size_t chunk_elements)
      : team_(team),
        type_(type),
        op_(op),
        slot_bytes_((chunk_elements * SizeOf(type) + 63) / 64 * 64),
        slots_(NewMemory(kSlots * (team.size - 1) * slot_bytes_)) {}

  // Returns where a peer's elements of that chunk arrive.
  char* Slot(int peer, int chunk) const {
    const int other = peer < team_.rank ? peer : peer - 1;
    return slots_.get() + ((chunk % kSlots) * (team_.size - 1) + other) * slot_bytes_;
  }

  // `own` are this rank's elements, which may be `output`.
  void Reduce(int chunk, const std::vector<double>& factors, const char* own, char* output,
              size_t count) const {
    if (count == 0) return;
    const bool is_scaled =
        std::any_of(factors.begin(), factors.end(), [](double factor) { return factor != 1; });
    std::vector<const char*> inputs;
    for (int rank = 0; rank < team_.size; ++rank) {
      inputs.push_back(rank == team_.rank ? own : Slot(rank, chunk));
    }
    shared_memory::ElementReduction call;
    call.type = type_;
    call.op = op_;
    call.inputs = inputs.data();
    call.factors = is_scaled ? factors.data() : nullptr;
    call.ranks = team_.size;
    call.outputs = &output;
    call.output_count = 1;
    call.count = count;
    shared_memory::ReduceElements(call);
  }

 private:
  const Team team_;
  const DataType type_;
  const ReduceOp op_;
  const size_t slot_bytes_;
  const std::shared_ptr<char> slots_;
};

bool IsSmall(const Team& team, const Buffer& buffer) {
  return BytesOf(buffer) * (team.size - 1) <= kDirectBytes;
}

// Adds chunk k of the first round, then chunk k - 1 of the second, which needs the first's result.
template <typename AddFirst, typename AddSecond>
void Interleave(int chunks, const AddFirst& add_first, const AddSecond& add_second) {
  for (int chunk = 0; chunk <= chunks; ++chunk) {
    if (chunk < chunks) add_first(chunk);
    if (chunk > 0) add_second(chunk - 1);
  }
}

Plan PlanDirectAllReduce(const Team& team, const Buffer& buffer, ReduceOp op) {
  Plan plan(team.size);
  const size_t bytes = BytesOf(buffer);
  // A copy, because the sums are written to the buffer while it may still be being sent.
  const std::shared_ptr<char> own = NewMemory(bytes);
  memcpy(own.get(), buffer.data, bytes);
  const auto step = std::make_shared<ChunkReduction>(team, buffer.type, op, buffer.count);
  for (int peer = 0; peer < team.size; ++peer) {
    if (peer == team.rank) continue;
    plan.outgoing[peer].push_back({own.get(), bytes});
    plan.incoming[peer].push_back({step->Slot(peer, 0), bytes, 0, 0});
  }
  plan.steps = 1;
  plan.finish = [step, own, buffer](int, const std::vector<double>& factors) {
    step->Reduce(0, factors, own.get(), static_cast<char*>(buffer.data), buffer.count);
  };
  return plan;
}

Plan PlanDirectReduce(const Team& team, const Buffer& buffer, ReduceOp op, int root) {
  Plan plan(team.size);
  const size_t bytes = BytesOf(buffer);
  if (team.rank != root) {
    plan.outgoing[root].push_back({static_cast<char*>(buffer.data), bytes});
    return plan;
  }
  const auto step = std::make_shared<ChunkReduction>(team, buffer.type, op, buffer.count);
  for (int peer = 0; peer < team.size; ++peer) {
    if (peer != root) plan.incoming[peer].push_back({step->Slot(peer, 0), bytes, 0, 0});
  }
  plan.steps = 1;
  plan.finish = [step, buffer](int, const std::vector<double>& factors) {
    char* const data = static_cast<char*>(buffer.data);
    step->Reduce(0, factors, data, data, buffer.count);
  };
  return plan;
}

}  // namespace

Plan PlanAllReduce(const Team& team, const Buffer& buffer, ReduceOp op) {
  if (buffer.count == 0) return Plan(team.size);
  if (IsSmall(team, buffer)) return PlanDirectAllReduce(team, buffer, op);
  const size_t element = SizeOf(buffer.type);
  char* const data = static_cast<char*>(buffer.data);
  const Cut cut(EqualParts(buffer.count, team.size), element);
  const auto step = std::make_shared<ChunkReduction>(team, buffer.type, op, cut.chunk_elements());
  const auto in_buffer = [&](int rank, int chunk) -> Piece {
    const Cut::Range range = cut.Chunk(rank, chunk);
    return {data + range.begin * element, range.count * element};
  };
  Plan plan(team.size);
  for (int peer = 0; peer < team.size; ++peer) {
    if (peer == team.rank) continue;
    const auto send_elements = [&](int chunk) {
      plan.outgoing[peer].push_back(in_buffer(peer, chunk));
    };
    const auto send_sums = [&](int chunk) {
      plan.outgoing[peer].push_back(in_buffer(team.rank, chunk));
      plan.outgoing[peer].back().after = chunk + 1;
    };
    const auto receive_elements = [&](int chunk) {
      plan.incoming[peer].push_back({step->Slot(peer, chunk),
                                     cut.Chunk(team.rank, chunk).count * element,
                                     std::max(0, chunk - kSlots + 1), chunk});
    };
    // Sums may overwrite this rank's elements: the peer must have received those to compute the
    // sums.
    const auto receive_sums = [&](int chunk) {
      plan.incoming[peer].push_back(in_buffer(peer, chunk));
    };
    Interleave(cut.chunks(), send_elements, send_sums);
    Interleave(cut.chunks(), receive_elements, receive_sums);
  }
  plan.steps = cut.chunks();
  plan.finish = [step, cut, team, data, element](int chunk, const std::vector<double>& factors) {
    const Cut::Range range = cut.Chunk(team.rank, chunk);
    char* const own = data + range.begin * element;
    step->Reduce(chunk, factors, own, own, range.count);
  };
  return plan;
}

Plan PlanReduce(const Team& team, const Buffer& buffer, ReduceOp op, int root) {
  if (buffer.count == 0) return Plan(team.size);
  if (IsSmall(team, buffer)) return PlanDirectReduce(team, buffer, op, root);
  const size_t element = SizeOf(buffer.type);
  char* const data = static_cast<char*>(buffer.data);
  const Cut cut(EqualParts(buffer.count, team.size), element);
  const auto step = std::make_shared<ChunkReduction>(team, buffer.type, op, cut.chunk_elements());
  const bool is_root = team.rank == root;
  // Only the root's buffer may change.
  const Cut::Range part = cut.Part(team.rank);
  const std::shared_ptr<char> sums =
      is_root ? nullptr : NewMemory(std::max<size_t>(1, part.count * element));
  char* const own_sums = is_root ? data + part.begin * element : sums.get();
  const auto chunk_of = [&](char* from, int rank, int chunk, size_t base) -> Piece {
    const Cut::Range range = cut.Chunk(rank, chunk);
    return {from + (range.begin - base) * element, range.count * element};
  };
  Plan plan(team.size);
  for (int peer = 0; peer < team.size; ++peer) {
    if (peer == team.rank) continue;
    const auto send_elements = [&](int chunk) {
      plan.outgoing[peer].push_back(chunk_of(data, peer, chunk, 0));
    };
    const auto send_sums = [&](int chunk) {
      if (peer != root) return;
      plan.outgoing[peer].push_back(chunk_of(own_sums, team.rank, chunk, part.begin));
      plan.outgoing[peer].back().after = chunk + 1;
    };
    const auto receive_elements = [&](int chunk) {
      plan.incoming[peer].push_back({step->Slot(peer, chunk),
                                     cut.Chunk(team.rank, chunk).count * element,
                                     std::max(0, chunk - kSlots + 1), chunk});
    };
    const auto receive_sums = [&](int chunk) {
      if (is_root) plan.incoming[peer].push_back(chunk_of(data, peer, chunk, 0));
    };
    Interleave(cut.chunks(), send_elements, send_sums);
    Interleave(cut.chunks(), receive_elements, receive_sums);
  }
  plan.steps = cut.chunks();
  plan.finish = [step, cut, team, data, sums, own_sums, part, element](
                    int chunk, const std::vector<double>& factors) {
    const Cut::Range range = cut.Chunk(team.rank, chunk);
    step->Reduce(chunk, factors, data + range.begin * element,
                 own_sums + (range.begin - part.begin) * element, range.count);
  };
  return plan;
}

Plan PlanReduceScatter(const Team& team, const Buffer& input, const Buffer& output,
                       Span<const size_t> counts, ReduceOp op) {
  if (input.count == 0) return Plan(team.size);
  const size_t element = SizeOf(input.type);
  const Cut cut(counts, element);
  char* const own = static_cast<char*>(input.data);
  const auto step = std::make_shared<ChunkReduction>(team, input.type, op, cut.chunk_elements());
  Plan plan(team.size);
  for (int peer = 0; peer < team.size; ++peer) {
    if (peer == team.rank) continue;
    for (int chunk = 0; chunk < cut.chunks(); ++chunk) {
      const Cut::Range range = cut.Chunk(peer, chunk);
      plan.outgoing[peer].push_back({own + range.begin * element, range.count * element});
      plan.incoming[peer].push_back({step->Slot(peer, chunk),
                                     cut.Chunk(team.rank, chunk).count * element,
                                     std::max(0, chunk - kSlots + 1), chunk});
    }
  }
  plan.steps = cut.chunks();
  plan.finish = [step, cut, team, own, element, out = static_cast<char*>(output.data)](
                    int chunk, const std::vector<double>& factors) {
    const Cut::Range range = cut.Chunk(team.rank, chunk);
    const size_t within = range.begin - cut.Part(team.rank).begin;
    step->Reduce(chunk, factors, own + range.begin * element, out + within * element, range.count);
  };
  return plan;
}

// A small buffer is sent directly by the root. Otherwise the root sends each rank a part, which
// that rank passes on, so the root sends every byte only once.
Plan PlanBroadcast(const Team& team, const Buffer& buffer, int root) {
  Plan plan(team.size);
  if (buffer.count == 0) return plan;
  char* const data = static_cast<char*>(buffer.data);
  if (team.size == 2 || IsSmall(team, buffer)) {
    for (int peer = 0; peer < team.size; ++peer) {
      if (team.rank == root && peer != root) plan.outgoing[peer].push_back({data, BytesOf(buffer)});
    }
    if (team.rank != root) plan.incoming[root].push_back({data, BytesOf(buffer)});
    return plan;
  }
  // The parts are counted in bytes, and the root has none.
  std::vector<size_t> parts = EqualParts(BytesOf(buffer), team.size - 1);
  parts.insert(parts.begin() + root, 0);
  const Cut cut(parts, 1);
  for (int chunk = 0; chunk < cut.chunks(); ++chunk) {
    for (int peer = 0; peer < team.size; ++peer) {
      const Cut::Range range = cut.Chunk(peer, chunk), own = cut.Chunk(team.rank, chunk);
      if (peer == team.rank) continue;
      if (team.rank == root) {
        plan.outgoing[peer].push_back({data + range.begin, range.count});
      } else if (peer == root) {
        plan.incoming[root].push_back({data + own.begin, own.count, 0, chunk});
      } else {
        plan.outgoing[peer].push_back({data + own.begin, own.count, chunk + 1});
        plan.incoming[peer].push_back({data + range.begin, range.count});
      }
    }
  }
  if (team.rank != root) plan.steps = cut.chunks();
  return plan;
}

Plan PlanAllGather(const Team& team, const Buffer& input, const Buffer& output,
                   Span<const size_t> counts) {
  Plan plan(team.size);
  if (output.count == 0) return plan;
  const size_t element = SizeOf(input.type);
  char* at = static_cast<char*>(output.data);
  char* const own = static_cast<char*>(input.data);
  for (int peer = 0; peer < team.size; ++peer) {
    const size_t bytes = counts[peer] * element;
    if (peer != team.rank) {
      plan.outgoing[peer].push_back({own, BytesOf(input)});
      plan.incoming[peer].push_back({at, bytes});
    } else if (bytes > 0 && at != own) {
      memcpy(at, own, bytes);
    }
    at += bytes;
  }
  return plan;
}

Plan PlanBarrier(const Team& team) {
  Plan plan(team.size);
  for (int peer = 0; peer < team.size; ++peer) {
    if (peer == team.rank) continue;
    plan.outgoing[peer].push_back({});
    plan.incoming[peer].push_back({});
  }
  return plan;
}

}  // namespace cadre::sockets
