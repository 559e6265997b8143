// A set of processors as the kernel takes it. Pure.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESSES_CPU_MASK_H_
#define CADRE_AGENT_SUPERVISOR_PROCESSES_CPU_MASK_H_

#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace cadre::supervisor {

// Far above any machine; a larger number in a StartFrame is an error, not an allocation.
inline constexpr uint32_t kMaxCpus = 65536;

class CpuMask {
 public:
  // nullopt: there is no such processor.
  static std::optional<CpuMask> Of(const std::vector<uint32_t>& cpus);

  // nullptr: no processor was named.
  const cpu_set_t* set() const {
    return words_.empty() ? nullptr : reinterpret_cast<const cpu_set_t*>(words_.data());
  }
  size_t bytes() const { return words_.size() * sizeof(unsigned long); }

 private:
  std::vector<unsigned long> words_;
};

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESSES_CPU_MASK_H_
