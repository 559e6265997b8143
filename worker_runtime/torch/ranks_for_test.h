// Runs the ranks of a data-parallel model as threads of one test process.
#ifndef CADRE_WORKER_RUNTIME_TORCH_RANKS_FOR_TEST_H_
#define CADRE_WORKER_RUNTIME_TORCH_RANKS_FOR_TEST_H_

#include <chrono>
#include <functional>

#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "cadre/torch/data_parallel.h"
#include "torch/utils.h"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/testing/ranks.h"

namespace cadre::nn {

inline constexpr std::chrono::nanoseconds kLong = std::chrono::seconds(30);

inline void OnEachRank(int world_size, const std::function<void(Communicator&)>& body) {
  torch::set_num_threads(1);
  testing::OnEachRank(sockets::ConnectSockets, world_size, body, kLong);
}

// A bucket of 1 byte holds one parameter, so every parameter gets its own bucket.
inline DataParallelOptions SmallBuckets() {
  DataParallelOptions options;
  options.reducer.first_bucket_bytes = options.reducer.bucket_bytes = 1;
  options.reducer.timeout = options.timeout = kLong;
  return options;
}

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_RANKS_FOR_TEST_H_
