#include "agent/supervisor/processes/cpu_mask.h"

namespace cadre::supervisor {

std::optional<CpuMask> CpuMask::Of(const std::vector<uint32_t>& cpus) {
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  CpuMask mask;
  for (const uint32_t cpu : cpus) {
    if (cpu >= kMaxCpus) return std::nullopt;
    if (mask.words_.size() <= cpu / kBits) mask.words_.resize(cpu / kBits + 1);
    mask.words_[cpu / kBits] |= 1ul << (cpu % kBits);
  }
  return mask;
}

}  // namespace cadre::supervisor
