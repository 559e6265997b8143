#include "bench/collectives/ranks_on_network.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"
#include "tests/testing/node_network.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/store/group_worker.h"
#include "worker_runtime/testing/forked_workers.h"

namespace cadre {
namespace {

Status EnterNode(int rank) {
  const std::string path = absl::StrCat("/run/netns/", NodeNetwork::NameOf(rank + 1));
  const ScopedFd node(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (node.ok() && setns(node.get(), CLONE_NEWNET) == 0) return OkStatus();
  return ErrnoToStatus(errno, path);
}

WorkerPlace PlaceOn(Network network, const Worker& worker) {
  WorkerPlace place = worker.place();
  place.address = AddressOn(network, place.rank);
  return place;
}

}  // namespace

std::string AddressOn(Network network, int rank) {
  return network == Network::kLoopback ? "127.0.0.1" : NodeNetwork::AddressOf(rank + 1);
}

std::string CommandPrefix(Network network, int rank) {
  if (network == Network::kLoopback) return "";
  return absl::StrCat(absl::StrJoin(NodeNetwork::Inside(rank + 1), " "), " ");
}

std::string InterfaceOf(Network network) { return network == Network::kLoopback ? "lo" : "eth0"; }

Status MakeNodes(int nodes) {
  RETURN_IF_ERROR(NodeNetwork::EnterWith(nodes));
  return OkStatus();
}

std::vector<double> RunRanks(Network network, int ranks, size_t measurements,
                             const std::function<Status(Worker&, double* results)>& rank) {
  void* const memory = mmap(nullptr, measurements * sizeof(double), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    perror("mmap");
    return {};
  }
  auto* const results = static_cast<double*>(memory);
  testing::ForkedWorkers workers(ranks, ranks);
  workers.Start([&](Worker& worker) {
    Status status = network == Network::kVeth ? EnterNode(worker.rank()) : OkStatus();
    store::GroupWorker placed(&worker, "network", PlaceOn(network, worker));
    if (status.ok()) status = rank(placed, results);
    if (!status.ok()) fprintf(stderr, "rank %d: %s\n", worker.rank(), status.ToString().c_str());
    return status.ok() ? 0 : 1;
  });
  std::vector<double> measured;
  if (workers.WaitForAll() == 0) measured.assign(results, results + measurements);
  munmap(memory, measurements * sizeof(double));
  return measured;
}

}  // namespace cadre
