#include "worker_runtime/hooks/selection.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>

namespace cadre::hooks {
namespace {

// Bits without the sign are ordered as magnitudes are, with NaN on top.
uint32_t MagnitudeBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits & 0x7fffffffu;
}

// The exponent and the first bits of the fraction.
constexpr int kCoarseShift = 16;
constexpr size_t kCoarseBins = size_t{1} << (31 - kCoarseShift);

// The magnitude of the `count`-th largest element, 1 <= count <= values.size(): one pass counts
// coarsely, and then only the elements around the cut are compared.
uint32_t CutMagnitude(Span<const float> values, size_t count) {
  std::vector<size_t> bins(kCoarseBins);
  for (const float value : values) ++bins[MagnitudeBits(value) >> kCoarseShift];
  size_t bin = kCoarseBins - 1;
  while (bins[bin] < count) count -= bins[bin--];
  std::vector<uint32_t> around;
  around.reserve(bins[bin]);
  for (const float value : values) {
    const uint32_t bits = MagnitudeBits(value);
    if (bits >> kCoarseShift == bin) around.push_back(bits);
  }
  const auto cut = around.begin() + (count - 1);
  std::nth_element(around.begin(), cut, around.end(), std::greater<uint32_t>());
  return *cut;
}

}  // namespace

std::vector<int32_t> LargestElements(Span<const float> values, size_t count) {
  count = std::min(count, values.size());
  std::vector<int32_t> indices;
  if (count == 0) return indices;
  const uint32_t cut = CutMagnitude(values, count);
  size_t above = 0;
  for (const float value : values) above += MagnitudeBits(value) > cut;
  size_t equal = count - above;
  indices.reserve(count);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = MagnitudeBits(values[i]);
    if (bits < cut || (bits == cut && equal == 0)) continue;
    if (bits == cut) --equal;
    indices.push_back(static_cast<int32_t>(i));
  }
  return indices;
}

std::vector<int32_t> ElementsFrom(Span<const float> values, float magnitude) {
  std::vector<int32_t> indices;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!(std::fabs(values[i]) < magnitude)) indices.push_back(static_cast<int32_t>(i));
  }
  return indices;
}

}  // namespace cadre::hooks
