#include "worker_runtime/reduce/gradient_scan.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace cadre::reduce {
namespace {

// Adding the lowest bit of the exponent to the magnitude's bits carries into the sign for NaN and
// infinity only. Uses integer additions joined by "or", which any processor vectorizes.
template <typename Bits, Bits kExponentUnit>
bool NoneCarries(const Bits* bits, size_t count) {
  constexpr Bits kMagnitude = static_cast<Bits>(-1) >> 1;
  Bits joined = 0;
  for (size_t i = 0; i < count; ++i) joined |= (bits[i] & kMagnitude) + kExponentUnit;
  return (joined & ~kMagnitude) == 0;
}

constexpr uint32_t kUnit32 = uint32_t{1} << 23;
constexpr uint64_t kUnit64 = uint64_t{1} << 52;
// A block that fits into the first-level cache between its copy and its check.
constexpr size_t kBlockBytes = 16 << 10;

}  // namespace

bool IsFinite(const Buffer& buffer) {
  if (buffer.type == DataType::kFloat32) {
    return NoneCarries<uint32_t, kUnit32>(static_cast<const uint32_t*>(buffer.data), buffer.count);
  }
  if (buffer.type == DataType::kFloat64) {
    return NoneCarries<uint64_t, kUnit64>(static_cast<const uint64_t*>(buffer.data), buffer.count);
  }
  return true;
}

bool CopyAndCheckFinite(const Buffer& target, const void* source) {
  if (source == target.data) return IsFinite(target);
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

}  // namespace cadre::reduce
