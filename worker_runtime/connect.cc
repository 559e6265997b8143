#include "cadre/connect.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "worker_runtime/backend/solo_communicator.h"
#include "worker_runtime/hierarchical/hierarchical_communicator.h"
#include "worker_runtime/shared_memory/limits.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/sockets/socket_communicator.h"

namespace cadre {

Result<World> Connect(const CommunicatorOptions& options) {
  World world;
  ASSIGN_OR_RETURN(world.worker, Worker::Connect());
  ASSIGN_OR_RETURN(world.communicator, ConnectCommunicator(*world.worker, options));
  return world;
}

Result<std::unique_ptr<Communicator>> ConnectCommunicator(Worker& worker,
                                                          const CommunicatorOptions& options) {
  const char* const variable = std::getenv("CADRE_CPU_BACKEND");
  const absl::string_view backend = variable == nullptr ? "" : variable;
  if (backend != "" && backend != "sockets" && backend != "shared_memory") {
    return InvalidArgumentError(absl::StrCat(
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
