#include "worker_runtime/gloo/gloo_collectives.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "gloo/allgather.h"
#include "gloo/allgatherv.h"
#include "gloo/allreduce.h"
#include "gloo/barrier.h"
#include "gloo/broadcast.h"
#include "gloo/math.h"
#include "gloo/types.h"
#include "worker_runtime/reduce/element_scaling.h"
#include "worker_runtime/shared_memory/reduce_kernels.h"

namespace cadre::gloo {
namespace {

// Elements of a collective that goes through memory of ours, at a time.
constexpr size_t kPieceElements = size_t{256} << 10;
// Bytes that a rank sends at most where all send all they have to all, in place of Gloo's ring: its
// rounds wait for each other, four messages for each other rank and as many wake-ups.
constexpr size_t kDirectBytes = size_t{256} << 10;
// Gloo's own collectives have 1 to 8.
constexpr uint8_t kScatterSlotPrefix = 0x5c;

template <typename T>
::gloo::AllreduceOptions::Func Function(ReduceOp op) {
  using Typed = void (*)(void*, const void*, const void*, size_t);
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return static_cast<Typed>(&::gloo::sum<T>);
    case ReduceOp::kMax:
      return static_cast<Typed>(&::gloo::max<T>);
    case ReduceOp::kMin:
      return static_cast<Typed>(&::gloo::min<T>);
  }
  return nullptr;
}

::gloo::AllreduceOptions::Func Function(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kFloat32:
      return Function<float>(op);
    case DataType::kFloat64:
      return Function<double>(op);
    case DataType::kInt32:
      return Function<int32_t>(op);
    case DataType::kInt64:
      return Function<int64_t>(op);
    case DataType::kUint8:
      return Function<uint8_t>(op);
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return nullptr;  // widened
  }
  return nullptr;
}

// Gloo's options want a C++ type, of which only the size matters.
template <typename Options>
void SetOutput(Options* options, const Buffer& buffer) {
  switch (SizeOf(buffer.type)) {
    case 8:
      return options->setOutput(static_cast<uint64_t*>(buffer.data), buffer.count);
    case 4:
      return options->setOutput(static_cast<uint32_t*>(buffer.data), buffer.count);
    case 2:
      return options->setOutput(static_cast<uint16_t*>(buffer.data), buffer.count);
    default:
      return options->setOutput(static_cast<uint8_t*>(buffer.data), buffer.count);
  }
}

void AllReduceElements(const GlooContext& context, uint32_t tag, const Buffer& buffer,
                       const Reduction& reduction) {
  reduce::MultiplyInPlace(buffer, reduction.premultiply);
  ::gloo::AllreduceOptions options(context);
  options.setTag(tag);
  SetOutput(&options, buffer);
  options.setReduceFunction(Function(buffer.type, reduction.op));
  ::gloo::allreduce(options);
  if (reduction.op == ReduceOp::kAverage) reduce::MultiplyInPlace(buffer, 1.0 / context->size);
}

bool IsSixteenBits(DataType type) {
  return type == DataType::kFloat16 || type == DataType::kBfloat16;
}

// Reduces copies, 16-bit elements as float32, and writes the result back where it `is_wanted`.
void AllReduceCopies(const GlooContext& context, Tags tags, const Buffer& buffer,
                     const Reduction& reduction, bool is_wanted) {
  const bool widens = IsSixteenBits(buffer.type);
  const DataType type = widens ? DataType::kFloat32 : buffer.type;
  std::vector<double> memory(std::min(kPieceElements, buffer.count) * SizeOf(type) / 8 + 1);
  for (size_t done = 0; done < buffer.count; done += kPieceElements) {
    const size_t count = std::min(kPieceElements, buffer.count - done);
    char* const at = static_cast<char*>(buffer.data) + done * SizeOf(buffer.type);
    if (widens) {
      reduce::WidenToFloat(buffer.type, at, count, reinterpret_cast<float*>(memory.data()));
    } else {
      memcpy(memory.data(), at, count * SizeOf(type));
    }
    AllReduceElements(context, tags.Next(), {memory.data(), count, type}, reduction);
    if (!is_wanted) continue;
    if (widens) {
      reduce::NarrowFromFloat(buffer.type, reinterpret_cast<const float*>(memory.data()), count,
                              at);
    } else {
      memcpy(at, memory.data(), count * SizeOf(type));
    }
  }
}

// Element by element over `inputs`, one for each rank, in rank order: the same bits everywhere.
void ReduceInOrder(const std::vector<const char*>& inputs, const Buffer& output, ReduceOp op) {
  char* out = static_cast<char*>(output.data);
  shared_memory::ElementReduction call;
  call.type = output.type;
  call.op = op;
  call.inputs = inputs.data();
  call.ranks = static_cast<int>(inputs.size());
  call.outputs = &out;
  call.output_count = 1;
  call.count = output.count;
  shared_memory::ReduceElements(call);
}

using UnboundBuffers = std::vector<std::unique_ptr<::gloo::transport::UnboundBuffer>>;

// Sends `parts[r]` to each rank r, and puts what every rank has for this one next to each other in
// rank order in `all`.
void Scatter(const GlooContext& context, uint32_t tag, const std::vector<char*>& parts,
             size_t bytes, std::vector<char>* all) {
  const int rank = context->rank, size = context->size;
  const auto slot = ::gloo::Slot::build(kScatterSlotPrefix, tag);
  UnboundBuffers incoming, outgoing;
  for (int step = 1; step < size; ++step) {
    const int from = (rank + size - step) % size;
    incoming.push_back(context->createUnboundBuffer(all->data() + from * bytes, bytes));
    incoming.back()->recv(from, slot);
  }
  for (int step = 1; step < size; ++step) {
    const int to = (rank + step) % size;
    outgoing.push_back(context->createUnboundBuffer(parts[to], bytes));
    outgoing.back()->send(to, slot);
  }
  memcpy(all->data() + rank * bytes, parts[rank], bytes);
  for (const auto& one : incoming) one->waitRecv();
  for (const auto& one : outgoing) one->waitSend();
}

std::vector<const char*> PartsOf(const std::vector<char>& all, size_t bytes) {
  std::vector<const char*> parts;
  for (size_t at = 0; at < all.size(); at += bytes) parts.push_back(all.data() + at);
  return parts;
}

std::vector<char> Multiplied(const Buffer& buffer, double factor) {
  const char* const data = static_cast<const char*>(buffer.data);
  std::vector<char> own(data, data + buffer.count * SizeOf(buffer.type));
  reduce::MultiplyInPlace({own.data(), buffer.count, buffer.type}, factor);
  return own;
}

bool IsSmall(const GlooContext& context, const Buffer& buffer) {
  return buffer.count * SizeOf(buffer.type) * (context->size - 1) <= kDirectBytes;
}

void AllReduceDirectly(const GlooContext& context, uint32_t tag, const Buffer& buffer,
                       const Reduction& reduction) {
  std::vector<char> own = Multiplied(buffer, reduction.premultiply);
  std::vector<char> all(context->size * own.size());
  Scatter(context, tag, std::vector<char*>(context->size, own.data()), own.size(), &all);
  ReduceInOrder(PartsOf(all, own.size()), buffer, reduction.op);
}

void ReduceDirectly(const GlooContext& context, uint32_t tag, const Buffer& buffer,
                    const Reduction& reduction, int root) {
  std::vector<char> own = Multiplied(buffer, reduction.premultiply);
  const auto slot = ::gloo::Slot::build(kScatterSlotPrefix, tag);
  if (context->rank != root) {
    const auto outgoing = context->createUnboundBuffer(own.data(), own.size());
    outgoing->send(root, slot);
    outgoing->waitSend();
    return;
  }
  std::vector<char> all(context->size * own.size());
  UnboundBuffers incoming;
  for (int peer = 0; peer < context->size; ++peer) {
    char* const part = all.data() + peer * own.size();
    if (peer == root) {
      memcpy(part, own.data(), own.size());
      continue;
    }
    incoming.push_back(context->createUnboundBuffer(part, own.size()));
    incoming.back()->recv(peer, slot);
  }
  for (const auto& one : incoming) one->waitRecv();
  ReduceInOrder(PartsOf(all, own.size()), buffer, reduction.op);
}

}  // namespace

void GlooAllReduce(const GlooContext& context, Tags tags, const Buffer& buffer,
                   const Reduction& reduction) {
  if (IsSmall(context, buffer)) {
    AllReduceDirectly(context, tags.Next(), buffer, reduction);
  } else if (IsSixteenBits(buffer.type)) {
    AllReduceCopies(context, tags, buffer, reduction, true);
  } else {
    AllReduceElements(context, tags.Next(), buffer, reduction);
  }
}

void GlooReduce(const GlooContext& context, Tags tags, const Buffer& buffer,
                const Reduction& reduction, int root) {
  if (buffer.count == 0) return;
  if (IsSmall(context, buffer))
    return ReduceDirectly(context, tags.Next(), buffer, reduction, root);
  AllReduceCopies(context, tags, buffer, reduction, root == context->rank);
}

void GlooReduceScatter(const GlooContext& context, Tags tags, const Buffer& input,
                       const Buffer& output, const Reduction& reduction) {
  const size_t size = context->size, element = SizeOf(input.type);
  const size_t piece = std::max<size_t>(1, kPieceElements / size);
  std::vector<char> parts(size * std::min(piece, output.count) * element), all(parts.size());
  for (size_t done = 0; done < output.count; done += piece) {
    const size_t count = std::min(piece, output.count - done), bytes = count * element;
    for (size_t peer = 0; peer < size; ++peer) {
      const char* const from =
          static_cast<const char*>(input.data) + (peer * output.count + done) * element;
      memcpy(parts.data() + peer * bytes, from, bytes);
    }
    reduce::MultiplyInPlace({parts.data(), size * count, input.type}, reduction.premultiply);
    std::vector<char*> to;
    for (size_t peer = 0; peer < size; ++peer) to.push_back(parts.data() + peer * bytes);
    all.resize(size * bytes);
    Scatter(context, tags.Next(), to, bytes, &all);
    char* const out = static_cast<char*>(output.data) + done * element;
    ReduceInOrder(PartsOf(all, bytes), {out, count, input.type}, reduction.op);
  }
}

void GlooBroadcast(const GlooContext& context, Tags tags, const Buffer& buffer, int root) {
  ::gloo::BroadcastOptions options(context);
  options.setTag(tags.Next());
  options.setRoot(root);
  SetOutput(&options, buffer);
  ::gloo::broadcast(options);
}

void GlooAllGather(const GlooContext& context, Tags tags, const Buffer& input,
                   const Buffer& output) {
  ::gloo::AllgatherOptions options(context);
  options.setTag(tags.Next());
  options.setInput(static_cast<uint8_t*>(input.data), input.count * SizeOf(input.type));
  options.setOutput(static_cast<uint8_t*>(output.data), output.count * SizeOf(output.type));
  ::gloo::allgather(options);
}

void GlooAllGatherVarying(const GlooContext& context, Tags tags, const Buffer& input,
                          const Buffer& output, absl::Span<const size_t> counts) {
  const size_t element = SizeOf(input.type);
  std::vector<size_t> bytes;
  for (const size_t count : counts) bytes.push_back(count * element);
  ::gloo::AllgathervOptions options(context);
  options.setTag(tags.Next());
  options.setInput(static_cast<uint8_t*>(input.data), input.count * element);
  options.setOutput(static_cast<uint8_t*>(output.data), std::move(bytes));
  ::gloo::allgatherv(options);
}

void GlooBarrier(const GlooContext& context, Tags tags) {
  ::gloo::BarrierOptions options(context);
  options.setTag(tags.Next());
  ::gloo::barrier(options);
}

}  // namespace cadre::gloo
