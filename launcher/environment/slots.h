// The number of workers that this node starts. Counts GPUs and CPUs only if the job needs that.
#ifndef CADRE_LAUNCHER_ENVIRONMENT_SLOTS_H_
#define CADRE_LAUNCHER_ENVIRONMENT_SLOTS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {

struct GpuCount {
  uint32_t count = 0;
  // Why the count is 0.
  std::string reason;
};

// The machine's GPUs and cores. Each function is called at most once.
struct Machine {
  std::function<GpuCount()> gpus;
  std::function<absl::StatusOr<uint32_t>()> cores;
};

Machine ThisMachine();

// INVALID_ARGUMENT, with both numbers, if the node has fewer GPUs than its workers need.
// `own_gpus`: every worker needs a GPU of its own.
absl::StatusOr<uint32_t> CountSlots(const v1::JobSpec& job, bool own_gpus, const Machine& machine);

// INVALID_ARGUMENT if the node has fewer cores, or GPUs, than `workers` are to be bound to.
absl::Status CheckBinding(const v1::JobSpec& job, uint32_t workers, const Machine& machine);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ENVIRONMENT_SLOTS_H_
