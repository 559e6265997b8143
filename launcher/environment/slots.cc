#include "launcher/environment/slots.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/workers/node_hardware.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace cadre::launcher {
namespace {

absl::Status TooFewGpus(uint64_t needed, uint64_t workers, const GpuCount& gpus) {
  return absl::InvalidArgumentError(absl::StrCat(
      Count(workers, "worker"), workers == 1 ? " needs " : " need ", Count(needed, "GPU"),
      ", but this node has ", gpus.count,
      gpus.reason.empty() ? "" : absl::StrCat(" (", gpus.reason, ")"), "; start fewer workers"));
}

}  // namespace

Machine ThisMachine() {
  Machine machine;
  machine.gpus = [] {
    const agent::GpuList found = agent::FindGpus();
    return GpuCount{static_cast<uint32_t>(found.gpus.size()), found.reason};
  };
  machine.cores = []() -> absl::StatusOr<uint32_t> {
    ASSIGN_OR_RETURN(const std::vector<agent::CpuCore> cores, agent::FindCores());
    return static_cast<uint32_t>(cores.size());
  };
  return machine;
}

absl::StatusOr<uint32_t> CountSlots(const v1::JobSpec& job, bool own_gpus, const Machine& machine) {
  const uint32_t per_worker = std::max<uint32_t>(1, job.resources().gpus_per_worker());
  const uint32_t cpus_each = std::max<uint32_t>(1, job.resources().cpus_per_worker());
  const auto kind = job.workers_per_node().kind();
  if (kind == v1::WorkersPerNode::COUNT) {
    const uint32_t workers = job.workers_per_node().count();
    if (!own_gpus && job.resources().gpus_per_worker() == 0) return workers;
    const GpuCount gpus = machine.gpus();
    const uint64_t needed = uint64_t{workers} * per_worker;
    // A job that only sets up visibility may run on a machine without any GPU.
    const bool required = job.resources().gpus_per_worker() > 0 || gpus.count > 0;
    if (required && needed > gpus.count) return TooFewGpus(needed, workers, gpus);
    return workers;
  }
  if (kind == v1::WorkersPerNode::GPU || kind == v1::WorkersPerNode::AUTO) {
    const GpuCount gpus = machine.gpus();
    if (gpus.count >= per_worker) return gpus.count / per_worker;
    if (kind == v1::WorkersPerNode::GPU || gpus.count > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the job asks for one worker per ",
          per_worker == 1 ? "GPU" : absl::StrCat(per_worker, " GPUs"), ", but this node has ",
          Count(gpus.count, "GPU"), gpus.reason.empty() ? "" : absl::StrCat(" (", gpus.reason, ")"),
          "; give a number of workers, or cpu"));
    }
  }
  ASSIGN_OR_RETURN(const uint32_t cores, machine.cores());
  return std::max<uint32_t>(1, cores / cpus_each);
}

absl::Status CheckBinding(const v1::JobSpec& job, uint32_t workers, const Machine& machine) {
  const std::string& bind = job.placement().bind();
  if (bind == "core") {
    ASSIGN_OR_RETURN(const uint32_t cores, machine.cores());
    return agent::PlanBinding(bind, workers, std::vector<agent::CpuCore>(cores)).status();
  }
  if (bind != "gpu") return absl::OkStatus();
  const uint64_t needed = uint64_t{workers} * std::max(1u, job.resources().gpus_per_worker());
  const GpuCount gpus = machine.gpus();
  if (needed <= gpus.count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("placement.bind=gpu: ", TooFewGpus(needed, workers, gpus).message()));
}

}  // namespace cadre::launcher
