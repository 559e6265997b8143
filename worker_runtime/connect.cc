#include "worker_runtime/connect.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/backend/solo_communicator.h"
#include "worker_runtime/hierarchical/hierarchical_communicator.h"
#include "worker_runtime/shared_memory/limits.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/sockets/socket_communicator.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<Communicator>> Connect(Worker& worker,
                                                      const CommunicatorOptions& options) {
  const char* const variable = std::getenv("CADRE_CPU_BACKEND");
  const absl::string_view backend = variable == nullptr ? "" : variable;
  if (backend != "" && backend != "sockets" && backend != "shared_memory") {
    return absl::InvalidArgumentError(absl::StrCat(
        "CADRE_CPU_BACKEND is '", backend, "'; it may be sockets or shared_memory, or not be set"));
  }
  const WorkerPlace& place = worker.place();
  if (place.world_size == 1) return backend::MakeSoloCommunicator();
  if (backend == "sockets") return sockets::ConnectSockets(worker, options);
  if (backend == "shared_memory") return shared_memory::ConnectSharedMemory(worker, options);
  if (place.nodes > 1) return hierarchical::ConnectHierarchical(worker, options);
  if (place.world_size > shared_memory::kMaxSharedMemoryRanks) {
    return sockets::ConnectSockets(worker, options);
  }
  return shared_memory::ConnectSharedMemory(worker, options);
}

}  // namespace cadre
