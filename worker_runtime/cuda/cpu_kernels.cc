#include "worker_runtime/cuda/cpu_kernels.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "base/status_macros.h"
#include "worker_runtime/cuda/kernel_check.h"
#include "worker_runtime/reduce/element_scaling.h"

namespace cadre::cuda {
namespace {

constexpr size_t kBlock = 1024;
// Stands for scratch memory, which is not needed here, in the checks that both sides share.
constexpr char kNoScratch = 0;

// With equal types and a scale of 1 the GPU widens and narrows as well, which keeps all bits but
// those of a NaN's payload; so this does the same.
void ConvertBlock(DataType from_type, const char* from, DataType to_type, char* to, size_t count,
                  float scale) {
  float block[kBlock];
  if (from_type == DataType::kFloat32) {
    memcpy(block, from, count * sizeof(float));
  } else {
    reduce::WidenToFloat(from_type, from, count, block);
  }
  for (size_t i = 0; i < count; ++i) block[i] *= scale;
  if (to_type == DataType::kFloat32) {
    memcpy(to, block, count * sizeof(float));
  } else {
    reduce::NarrowFromFloat(to_type, block, count, to);
  }
}

void Convert(DataType from_type, const void* from, DataType to_type, void* to, size_t count,
             float scale) {
  const char* source = static_cast<const char*>(from);
  char* target = static_cast<char*>(to);
  for (size_t done = 0; done < count; done += kBlock) {
    ConvertBlock(from_type, source + done * SizeOf(from_type), to_type,
                 target + done * SizeOf(to_type), std::min(kBlock, count - done), scale);
  }
}

char* At(const Buffer& bucket, size_t offset) {
  return static_cast<char*>(bucket.data) + offset * SizeOf(bucket.type);
}

template <typename Bits>
uint64_t FirstWithExponent(const void* data, size_t count, Bits exponent) {
  const char* bytes = static_cast<const char*>(data);
  for (size_t i = 0; i < count; ++i) {
    Bits bits;
    memcpy(&bits, bytes + i * sizeof(bits), sizeof(bits));
    if ((bits & exponent) == exponent) return i;
  }
  return kAllFinite;
}

// The bits of |value|, which order like the values.
uint32_t Magnitude(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits & 0x7fffffffu;
}

// Writes what is above `bound` and the first `equal_wanted` of what equals it.
void WriteSelected(const Buffer& data, uint32_t bound, uint64_t equal_wanted,
                   const Selection& selection) {
  const float* values = static_cast<const float*>(data.data);
  uint64_t found = 0;
  for (size_t i = 0; i < data.count; ++i) {
    const uint32_t magnitude = Magnitude(values[i]);
    if (magnitude < bound || (magnitude == bound && equal_wanted == 0)) continue;
    if (magnitude == bound) --equal_wanted;
    if (found < selection.capacity) {
      selection.indices[found] = static_cast<uint32_t>(i);
      selection.values[found] = values[i];
    }
    ++found;
  }
  *selection.found = found;
}

}  // namespace

Status ConvertOnCpu(const Buffer& from, const Buffer& to, float scale) {
  RETURN_IF_ERROR(CheckConvert(from, to));
  Convert(from.type, from.data, to.type, to.data, from.count, scale);
  return OkStatus();
}

Status PackOnCpu(Span<const BucketPart> parts, const Buffer& bucket, float scale) {
  RETURN_IF_ERROR(CheckParts(parts, bucket));
  for (const BucketPart& part : parts) {
    Convert(part.tensor.type, part.tensor.data, bucket.type, At(bucket, part.offset),
            part.tensor.count, scale);
  }
  return OkStatus();
}

Status UnpackOnCpu(const Buffer& bucket, Span<const BucketPart> parts, float scale) {
  RETURN_IF_ERROR(CheckParts(parts, bucket));
  for (const BucketPart& part : parts) {
    Convert(bucket.type, At(bucket, part.offset), part.tensor.type, part.tensor.data,
            part.tensor.count, scale);
  }
  return OkStatus();
}

Status FirstNonFiniteOnCpu(const Buffer& data, uint64_t* first) {
  RETURN_IF_ERROR(CheckKernelBuffer(data));
  if (data.type == DataType::kFloat32) {
    *first = FirstWithExponent<uint32_t>(data.data, data.count, 0x7f800000u);
  } else {
    *first = FirstWithExponent<uint16_t>(data.data, data.count,
                                         data.type == DataType::kFloat16 ? 0x7c00 : 0x7f80);
  }
  return OkStatus();
}

Status SelectTopKOnCpu(const Buffer& data, size_t k, const Selection& selection) {
  RETURN_IF_ERROR(CheckSelection(data, selection, &kNoScratch));
  RETURN_IF_ERROR(CheckTopK(data, k, selection));
  *selection.found = 0;
  if (k == 0) return OkStatus();
  const float* values = static_cast<const float*>(data.data);
  std::vector<uint32_t> magnitudes(data.count);
  std::transform(values, values + data.count, magnitudes.begin(), Magnitude);
  const auto last = magnitudes.begin() + static_cast<ptrdiff_t>(k - 1);
  std::nth_element(magnitudes.begin(), last, magnitudes.end(), std::greater<uint32_t>());
  // Those above the bound lie before it; the rest of the first k equals it.
  const uint32_t bound = *last;
  const auto above = std::count_if(magnitudes.begin(), last,
                                   [bound](uint32_t magnitude) { return magnitude > bound; });
  WriteSelected(data, bound, k - static_cast<uint64_t>(above), selection);
  return OkStatus();
}

Status SelectThresholdOnCpu(const Buffer& data, float threshold, const Selection& selection) {
  RETURN_IF_ERROR(CheckSelection(data, selection, &kNoScratch));
  RETURN_IF_ERROR(CheckThreshold(threshold));
  WriteSelected(data, Magnitude(threshold), ~uint64_t{0}, selection);
  return OkStatus();
}

}  // namespace cadre::cuda
