#include "worker_runtime/gradient_scan.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace cadre {
namespace {

// The largest bits of a magnitude say whether any element is NaN or infinite. Integers, because the
// compiler vectorises their maximum and may not reorder that of floating point numbers.
template <typename Bits, Bits kInfinity>
bool AllBelowInfinity(const Bits* bits, size_t count) {
  constexpr Bits kMagnitude = static_cast<std::make_unsigned_t<Bits>>(-1) >> 1;
  Bits largest = 0;
  for (size_t i = 0; i < count; ++i) largest = std::max<Bits>(largest, bits[i] & kMagnitude);
  return largest < kInfinity;
}

constexpr int32_t kInfinity32 = 0x7f800000;
constexpr int64_t kInfinity64 = 0x7ff0000000000000;
// What stays in the first-level cache between its copy and its check.
constexpr size_t kBlockBytes = 16 << 10;

}  // namespace

bool IsFinite(const Buffer& buffer) {
  if (buffer.type == DataType::kFloat32) {
    return AllBelowInfinity<int32_t, kInfinity32>(static_cast<const int32_t*>(buffer.data),
                                                  buffer.count);
  }
  if (buffer.type == DataType::kFloat64) {
    return AllBelowInfinity<int64_t, kInfinity64>(static_cast<const int64_t*>(buffer.data),
                                                  buffer.count);
  }
  return true;
}

bool CopyAndCheckFinite(const Buffer& target, const void* source) {
  const size_t element = SizeOf(target.type);
  const size_t block = kBlockBytes / element;
  bool finite = true;
  for (size_t done = 0; done < target.count; done += block) {
    const size_t count = std::min(block, target.count - done);
    char* const to = static_cast<char*>(target.data) + done * element;
    std::memcpy(to, static_cast<const char*>(source) + done * element, count * element);
    finite = IsFinite({to, count, target.type}) && finite;
  }
  return finite;
}

}  // namespace cadre
