// A worker of which rank 1 ends for an error of its own, or in order, while the others wait for it:
// early_end shared_memory|sockets [in_order].
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "cadre/worker.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/sockets/socket_communicator.h"

namespace cadre {
namespace {

constexpr std::chrono::nanoseconds kTimeout = std::chrono::seconds(20);
// What libraries may take to be unloaded.
constexpr std::chrono::milliseconds kEnding{100};

Status Train(Worker& worker, absl::string_view backend, bool in_order) {
  const auto connect =
      backend == "sockets" ? sockets::ConnectSockets : shared_memory::ConnectSharedMemory;
  ASSIGN_OR_RETURN(const auto communicator, connect(worker, {"world", kTimeout}));
  for (int step = 0; step < 5; ++step) {
    float loss = 1;
    RETURN_IF_ERROR(
        communicator->AllReduce({&loss, 1, DataType::kFloat32}, ReduceOp::kSum)->Wait(kTimeout));
    if (worker.rank() != 1 || step != 3) continue;
    return in_order ? OkStatus() : NotFoundError("cannot read shard 7");
  }
  return OkStatus();
}

int Run(absl::string_view backend, bool in_order) {
  const auto worker = Worker::Connect();
  if (!worker.ok()) return EXIT_FAILURE;
  const Status status = Train(**worker, backend, in_order);
  std::fprintf(stderr, "early_end: %s\n", status.ToString().c_str());
  if ((*worker)->rank() == 1) (*worker)->Get("what nobody sets", kEnding).IgnoreError();
  return status.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) { return cadre::Run(argc > 1 ? argv[1] : "", argc > 2); }
