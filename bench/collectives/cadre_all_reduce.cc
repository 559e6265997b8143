#include "bench/collectives/cadre_all_reduce.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include "bench/collectives/bare_loop.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/testing/forked_workers.h"

namespace cadre {
namespace {

constexpr std::chrono::nanoseconds kTimeout = std::chrono::minutes(2);

// `bound`: null, or what takes turns.
int RunRank(Worker& worker, Backend backend, BareLoop* bound,
            const std::vector<Measurement>& schedule, double* results) {
  const CommunicatorOptions options = {"bench", kTimeout};
  auto communicator = backend == Backend::kSockets
                          ? sockets::ConnectSockets(worker, options)
                          : shared_memory::ConnectSharedMemory(worker, options);
  if (!communicator.ok()) {
    fprintf(stderr, "%s\n", communicator.status().ToString().c_str());
    return 1;
  }
  const size_t bytes = schedule.back().bytes;
  // Zeros, as with all others: sums of sums grow without end.
  std::vector<float> ordinary(backend == Backend::kSharedMemory ? 0 : bytes / sizeof(float));
  std::shared_ptr<void> allocated;
  float* data = ordinary.data();
  if (backend == Backend::kSharedMemory) {
    auto memory = (*communicator)->AllocateBuffer(bytes);
    if (!memory.ok()) {
      fprintf(stderr, "%s\n", memory.status().ToString().c_str());
      return 1;
    }
    allocated = *std::move(memory);
    data = static_cast<float*>(allocated.get());
  }
  if (bound != nullptr) bound->Enter(worker.rank());
  Status failed;
  for (size_t i = 0; i < schedule.size(); ++i) {
    const Buffer buffer = {data, schedule[i].bytes / sizeof(float), DataType::kFloat32};
    const auto reduce = [&](int times) {
      for (int k = 0; k < times; ++k) {
        failed.Update((*communicator)->AllReduce(buffer, ReduceOp::kSum)->Wait(kTimeout));
      }
    };
    const auto meet = [&] { failed.Update((*communicator)->Barrier()->Wait(kTimeout)); };
    if (bound == nullptr) {
      const auto [median] = MedianMicroseconds(schedule[i], meet, reduce);
      if (worker.rank() == 0) results[i] = median;
    } else {
      const auto bare = [&](int times) { bound->Reduce(buffer.count, times); };
      const auto [median, least] = MedianMicroseconds(schedule[i], meet, reduce, bare);
      if (worker.rank() == 0) {
        results[i] = median;
        results[schedule.size() + i] = least;
      }
    }
  }
  if (!failed.ok()) fprintf(stderr, "%s\n", failed.ToString().c_str());
  return failed.ok() ? 0 : 1;
}

}  // namespace

std::vector<double> RunCadre(Backend backend, int ranks, const std::vector<Measurement>& schedule,
                             bool beside_bound) {
  const size_t count = schedule.size() * (beside_bound ? 2 : 1);
  void* const memory = mmap(nullptr, count * sizeof(double), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    perror("mmap");
    return {};
  }
  auto* const results = static_cast<double*>(memory);
  std::optional<BareLoop> bound;
  if (beside_bound) bound.emplace(ranks, schedule.back().bytes);
  testing::ForkedWorkers workers(ranks);
  workers.Start([&](Worker& worker) {
    return RunRank(worker, backend, bound ? &*bound : nullptr, schedule, results);
  });
  std::vector<double> medians;
  if (workers.WaitForAll() == 0) medians.assign(results, results + count);
  munmap(memory, count * sizeof(double));
  return medians;
}

}  // namespace cadre
