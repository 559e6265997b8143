#include "worker_runtime/testing/pretend_gpu/elements.h"

#ifdef CADRE_HAVE_NCCL_HEADERS

#include <algorithm>
#include <cstdint>

#include "worker_runtime/reduce/element_scaling.h"

namespace cadre::pretend_gpu {
namespace {

bool IsHalf(ncclDataType_t type) { return type == ncclFloat16 || type == ncclBfloat16; }

DataType HalfType(ncclDataType_t type) {
  return type == ncclFloat16 ? DataType::kFloat16 : DataType::kBfloat16;
}

template <typename T>
void ReduceAs(ncclRedOp_t op, const std::vector<const char*>& inputs, size_t count, char* output) {
  auto* const to = reinterpret_cast<T*>(output);
  for (size_t i = 0; i < count; ++i) {
    T value = reinterpret_cast<const T*>(inputs[0])[i];
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      const T next = reinterpret_cast<const T*>(inputs[rank])[i];
      if (op == ncclMax) {
        value = std::max(value, next);
      } else if (op == ncclMin) {
        value = std::min(value, next);
      } else if (op == ncclProd) {
        value = static_cast<T>(value * next);
      } else {
        value = static_cast<T>(value + next);
      }
    }
    if (op == ncclAvg) value = static_cast<T>(value / static_cast<T>(inputs.size()));
    to[i] = value;
  }
}

template <typename T>
void MultiplyAs(const char* scalar, size_t count, char* elements) {
  auto* const values = reinterpret_cast<T*>(elements);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(values[i] * *reinterpret_cast<const T*>(scalar));
  }
}

void ReduceHalves(ncclDataType_t type, ncclRedOp_t op, const std::vector<const char*>& inputs,
                  size_t count, char* output) {
  std::vector<std::vector<float>> wide;
  std::vector<const char*> wide_inputs;
  for (const char* const input : inputs) {
    wide.emplace_back(count);
    reduce::WidenToFloat(HalfType(type), input, count, wide.back().data());
  }
  for (const auto& values : wide) {
    wide_inputs.push_back(reinterpret_cast<const char*>(values.data()));
  }
  std::vector<float> result(count);
  ReduceAs<float>(op, wide_inputs, count, reinterpret_cast<char*>(result.data()));
  reduce::NarrowFromFloat(HalfType(type), result.data(), count, output);
}

}  // namespace

size_t SizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

std::string NameOf(ncclDataType_t type) {
  static const char* const names[] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                      "uint64", "float16", "float32", "float64", "bfloat16"};
  const auto index = static_cast<size_t>(type);
  return index < sizeof(names) / sizeof(*names) ? names[index] : "type " + std::to_string(index);
}

std::string NameOf(ncclRedOp_t op) {
  static const char* const names[] = {"sum", "product", "maximum", "minimum", "average"};
  const auto index = static_cast<size_t>(op);
  return index < sizeof(names) / sizeof(*names) ? names[index] : "sum with a factor";
}

void Reduce(ncclDataType_t type, ncclRedOp_t op, const std::vector<const char*>& inputs,
            size_t count, char* output) {
  switch (type) {
    case ncclInt8:
      return ReduceAs<int8_t>(op, inputs, count, output);
    case ncclUint8:
      return ReduceAs<uint8_t>(op, inputs, count, output);
    case ncclInt32:
      return ReduceAs<int32_t>(op, inputs, count, output);
    case ncclUint32:
      return ReduceAs<uint32_t>(op, inputs, count, output);
    case ncclInt64:
      return ReduceAs<int64_t>(op, inputs, count, output);
    case ncclUint64:
      return ReduceAs<uint64_t>(op, inputs, count, output);
    case ncclFloat32:
      return ReduceAs<float>(op, inputs, count, output);
    case ncclFloat64:
      return ReduceAs<double>(op, inputs, count, output);
    case ncclFloat16:
    case ncclBfloat16:
      return ReduceHalves(type, op, inputs, count, output);
    default:
      return;
  }
}

std::string AverageFactor(ncclDataType_t type, int ranks) {
  const double factor = 1.0 / ranks;
  const float narrow = static_cast<float>(factor);
  if (type == ncclFloat64) return {reinterpret_cast<const char*>(&factor), sizeof(factor)};
  if (type == ncclFloat32) return {reinterpret_cast<const char*>(&narrow), sizeof(narrow)};
  if (!IsHalf(type)) return "";
  std::string half(2, '\0');
  reduce::NarrowFromFloat(HalfType(type), &narrow, 1, &half[0]);
  return half;
}

void Multiply(ncclDataType_t type, const char* scalar, size_t count, char* elements) {
  if (IsHalf(type)) {
    std::vector<float> wide(count);
    float factor = 1;
    reduce::WidenToFloat(HalfType(type), scalar, 1, &factor);
    reduce::WidenToFloat(HalfType(type), elements, count, wide.data());
    for (float& value : wide) value *= factor;
    return reduce::NarrowFromFloat(HalfType(type), wide.data(), count, elements);
  }
  switch (type) {
    case ncclInt8:
      return MultiplyAs<int8_t>(scalar, count, elements);
    case ncclUint8:
      return MultiplyAs<uint8_t>(scalar, count, elements);
    case ncclInt32:
      return MultiplyAs<int32_t>(scalar, count, elements);
    case ncclUint32:
      return MultiplyAs<uint32_t>(scalar, count, elements);
    case ncclInt64:
      return MultiplyAs<int64_t>(scalar, count, elements);
    case ncclUint64:
      return MultiplyAs<uint64_t>(scalar, count, elements);
    case ncclFloat32:
      return MultiplyAs<float>(scalar, count, elements);
    case ncclFloat64:
      return MultiplyAs<double>(scalar, count, elements);
    default:
      return;
  }
}

size_t MultipliedByOneRank(ncclDataType_t type, size_t count) {
  constexpr size_t kPackBytes = 16, kBlockBytes = 16 << 10, kMaxBlocks = 32;
  if (count == 0) return 0;
  const size_t pack = kPackBytes / SizeOf(type);
  const size_t blocks =
      std::min(kMaxBlocks, (count * SizeOf(type) + kBlockBytes - 1) / kBlockBytes);
  const size_t each = (count / blocks + pack - 1) / pack * pack;
  return std::min(count, blocks * each);
}

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_NCCL_HEADERS
