#include "worker_runtime/gloo/gloo_collectives.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "gloo/allgather.h"
#include "gloo/allgatherv.h"
#include "gloo/allreduce.h"
#include "gloo/barrier.h"
#include "gloo/broadcast.h"
#include "gloo/math.h"
#include "gloo/types.h"
#include "worker_runtime/element_scaling.h"
#include "worker_runtime/shared_memory/reduce_kernels.h"

namespace cadre {
namespace {

// Elements of a collective that goes through memory of ours, at a time.
constexpr size_t kPieceElements = size_t{256} << 10;
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
  MultiplyInPlace(buffer, reduction.premultiply);
  ::gloo::AllreduceOptions options(context);
  options.setTag(tag);
  SetOutput(&options, buffer);
  options.setReduceFunction(Function(buffer.type, reduction.op));
  ::gloo::allreduce(options);
  if (reduction.op == ReduceOp::kAverage) MultiplyInPlace(buffer, 1.0 / context->size);
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
      WidenToFloat(buffer.type, at, count, reinterpret_cast<float*>(memory.data()));
    } else {
      memcpy(memory.data(), at, count * SizeOf(type));
    }
    AllReduceElements(context, tags.Next(), {memory.data(), count, type}, reduction);
    if (!is_wanted) continue;
    if (widens) {
      NarrowFromFloat(buffer.type, reinterpret_cast<const float*>(memory.data()), count, at);
    } else {
      memcpy(at, memory.data(), count * SizeOf(type));
    }
  }
}

// What every rank has for this one, next to each other in rank order in `all`.
void Scatter(const GlooContext& context, uint32_t tag, const std::vector<char>& parts, size_t bytes,
             std::vector<char>* all) {
  const int rank = context->rank, size = context->size;
  memcpy(all->data() + rank * bytes, parts.data() + rank * bytes, bytes);
  const auto slot = ::gloo::Slot::build(kScatterSlotPrefix, tag);
  for (int step = 1; step < size; ++step) {
    const int to = (rank + step) % size, from = (rank + size - step) % size;
    const auto out =
        context->createUnboundBuffer(const_cast<char*>(parts.data()) + to * bytes, bytes);
    const auto in = context->createUnboundBuffer(all->data() + from * bytes, bytes);
    in->recv(from, slot);
    out->send(to, slot);
    in->waitRecv();
    out->waitSend();
  }
}

}  // namespace

void GlooAllReduce(const GlooContext& context, Tags tags, const Buffer& buffer,
                   const Reduction& reduction) {
  if (IsSixteenBits(buffer.type)) {
    AllReduceCopies(context, tags, buffer, reduction, true);
  } else {
    AllReduceElements(context, tags.Next(), buffer, reduction);
  }
}

void GlooReduce(const GlooContext& context, Tags tags, const Buffer& buffer,
                const Reduction& reduction, int root) {
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
    MultiplyInPlace({parts.data(), size * count, input.type}, reduction.premultiply);
    Scatter(context, tags.Next(), parts, bytes, &all);
    std::vector<const char*> inputs;
    for (size_t peer = 0; peer < size; ++peer) inputs.push_back(all.data() + peer * bytes);
    char* out = static_cast<char*>(output.data) + done * element;
    ElementReduction call;
    call.type = input.type;
    call.op = reduction.op;
    call.inputs = inputs.data();
    call.ranks = static_cast<int>(size);
    call.outputs = &out;
    call.output_count = 1;
    call.count = count;
    ReduceElements(call);
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

}  // namespace cadre
