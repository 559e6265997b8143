#include "worker_runtime/reduce/element_scaling.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace cadre::reduce {
namespace {

constexpr size_t kBlock = 1024;

float FromBfloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  memcpy(&value, &wide, sizeof(value));
  return value;
}

uint16_t ToBfloat16(float value) {
  uint32_t wide;
  memcpy(&wide, &value, sizeof(wide));
  // Keeps a NaN that rounding would turn into infinity.
  if ((wide & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((wide >> 16) | 0x40);
  return static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
}

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
// Compiled for two kinds of processor; the variant is chosen when the program is loaded, before the
// thread sanitizer can be called.
#define CADRE_FAST_HALVES __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define CADRE_FAST_HALVES
#endif

CADRE_FAST_HALVES void WidenHalves(const _Float16* from, size_t count, float* to) {
  for (size_t i = 0; i < count; ++i) to[i] = from[i];
}

CADRE_FAST_HALVES void NarrowHalves(const float* from, size_t count, _Float16* to) {
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<_Float16>(from[i]);
}

CADRE_FAST_HALVES void WidenBrains(const uint16_t* from, size_t count, float* to) {
  for (size_t i = 0; i < count; ++i) to[i] = FromBfloat16(from[i]);
}

CADRE_FAST_HALVES void NarrowBrains(const float* from, size_t count, uint16_t* to) {
  for (size_t i = 0; i < count; ++i) to[i] = ToBfloat16(from[i]);
}

template <typename T>
void Multiply(void* data, size_t count, T factor) {
  T* const elements = static_cast<T*>(data);
  for (size_t i = 0; i < count; ++i) elements[i] *= factor;
}

void MultiplySixteenBits(const Buffer& buffer, float factor) {
  float block[kBlock];
  char* data = static_cast<char*>(buffer.data);
  for (size_t done = 0; done < buffer.count; done += kBlock) {
    const size_t count = std::min(kBlock, buffer.count - done);
    WidenToFloat(buffer.type, data + done * 2, count, block);
    Multiply(block, count, factor);
    NarrowFromFloat(buffer.type, block, count, data + done * 2);
  }
}

}  // namespace

void WidenToFloat(DataType type, const void* from, size_t count, float* to) {
  if (type == DataType::kFloat16) {
    WidenHalves(static_cast<const _Float16*>(from), count, to);
  } else {
    CADRE_CHECK(type == DataType::kBfloat16, "type ", static_cast<int>(type), " is not narrow");
    WidenBrains(static_cast<const uint16_t*>(from), count, to);
  }
}

void NarrowFromFloat(DataType type, const float* from, size_t count, void* to) {
  if (type == DataType::kFloat16) {
    NarrowHalves(from, count, static_cast<_Float16*>(to));
  } else {
    CADRE_CHECK(type == DataType::kBfloat16, "type ", static_cast<int>(type), " is not narrow");
    NarrowBrains(from, count, static_cast<uint16_t*>(to));
  }
}

void MultiplyInPlace(const Buffer& buffer, double factor) {
  if (factor == 1) return;
  switch (buffer.type) {
    case DataType::kFloat32:
      return Multiply<float>(buffer.data, buffer.count, static_cast<float>(factor));
    case DataType::kFloat64:
      return Multiply<double>(buffer.data, buffer.count, factor);
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return MultiplySixteenBits(buffer, static_cast<float>(factor));
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kUint8:
      return;
  }
}

}  // namespace cadre::reduce
