// A worker that uses everything the runtime gets through its agent, and says what came of it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cadre/nccl/unique_id.h"
#include "cadre/worker.h"
#include "worker_runtime/sockets/socket_communicator.h"

namespace cadre {
namespace {

constexpr std::chrono::nanoseconds kTimeout = std::chrono::seconds(20);

// Every rank leaves its mark and reads that of its neighbour.
Status UseStore(Worker& worker) {
  const int next = (worker.rank() + 1) % worker.world_size();
  RETURN_IF_ERROR(
      worker.Set(absl::StrCat("mark/", worker.rank()), absl::StrCat("of ", worker.rank())));
  ASSIGN_OR_RETURN(const std::string mark, worker.Get(absl::StrCat("mark/", next), kTimeout));
  if (mark != absl::StrCat("of ", next)) return InternalError(absl::StrCat("read ", mark));
  RETURN_IF_ERROR(worker.Add("count", 1).status());
  RETURN_IF_ERROR(worker.Barrier("counted", kTimeout));
  ASSIGN_OR_RETURN(const int64_t count, worker.Add("count", 0));
  if (count != worker.world_size()) return InternalError(absl::StrCat("counted ", count));
  if (worker.rank() == 0) RETURN_IF_ERROR(worker.CompareAndSet("chosen", "", "0").status());
  RETURN_IF_ERROR(worker.Barrier("chosen", kTimeout));
  RETURN_IF_ERROR(worker.CompareAndSet("chosen", "0", "0").status());
  return OkStatus();
}

Status UseCommunicator(Worker& worker) {
  ASSIGN_OR_RETURN(auto communicator, sockets::ConnectSockets(worker, {"probe", kTimeout}));
  float sum = static_cast<float>(worker.rank() + 1);
  RETURN_IF_ERROR(
      communicator->AllReduce({&sum, 1, DataType::kFloat32}, ReduceOp::kSum)->Wait(kTimeout));
  const float n = static_cast<float>(worker.world_size());
  if (sum != n * (n + 1) / 2) return InternalError(absl::StrCat("sum is ", sum));
  return OkStatus();
}

Status Run() {
  ASSIGN_OR_RETURN(auto worker, Worker::Connect());
  RETURN_IF_ERROR(worker->Barrier("all here", kTimeout));
  RETURN_IF_ERROR(UseStore(*worker));
  RETURN_IF_ERROR(UseCommunicator(*worker));
  worker->ReportProgress(7, 1234, 0.5);
  const Result<std::string> id = nccl::ShareNcclUniqueId(*worker, "world", kTimeout);
  std::printf("runtime ok rank=%d nccl=%s\n", worker->rank(),
              id.ok() ? absl::BytesToHexString(*id).c_str() : id.status().ToString().c_str());
  std::fflush(stdout);
  // The id holds a listening socket of rank 0, so nobody leaves early.
  return worker->Barrier("done", kTimeout);
}

}  // namespace
}  // namespace cadre

int main() {
  const cadre::Status status = cadre::Run();
  if (status.ok()) return EXIT_SUCCESS;
  std::fprintf(stderr, "runtime_probe: %s\n", status.ToString().c_str());
  return EXIT_FAILURE;
}
