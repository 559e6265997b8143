// What two ranks cannot do without: each sends half of its elements to the other, sums what it
// gets, and sends the sums back, on one socket, with nothing around it.
#ifndef CADRE_BENCH_COLLECTIVES_SOCKET_LOOP_H_
#define CADRE_BENCH_COLLECTIVES_SOCKET_LOOP_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/scoped_fd.h"
#include "worker_runtime/worker.h"

namespace cadre {

class SocketLoop {
 public:
  enum class Wait { kSpin, kPoll };

  // Both ranks, of two.
  static absl::StatusOr<SocketLoop> Connect(Worker& worker, Wait wait);

  // Of the first `count` elements; `data` holds the sums afterwards.
  absl::Status AllReduce(float* data, size_t count);
  absl::Status Barrier();

 private:
  SocketLoop(ScopedFd socket, int rank, Wait wait)
      : socket_(std::move(socket)), rank_(rank), wait_(wait) {}
  absl::Status Exchange(const void* send, size_t send_bytes, void* receive, size_t receive_bytes);

  ScopedFd socket_;
  int rank_;
  Wait wait_;
  std::vector<float> received_;
};

}  // namespace cadre

#endif  // CADRE_BENCH_COLLECTIVES_SOCKET_LOOP_H_
