#include "worker_runtime/reduce/gradient_scan.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace cadre::reduce {
namespace {

// The magnitude's bits of NaN and infinity, and of nothing else, carry into the sign when the
// lowest bit of the exponent is added. Integers that are added and joined by "or", because any
// processor does that to several at once.
template <typename Bits, Bits kExponentUnit>
bool NoneCarries(const Bits* bits, size_t count) {
  constexpr Bits kMagnitude = static_cast<Bits>(-1) >> 1;
  Bits joined = 0;
  for (size_t i = 0; i < count; ++i) joined |= (bits[i] & kMagnitude) + kExponentUnit;
  return (joined & ~kMagnitude) == 0;
}

constexpr uint32_t kUnit32 = uint32_t{1} << 23;
constexpr uint64_t kUnit64 = uint64_t{1} << 52;
// A block that stays in the first-level cache between its copy and its check.
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
