// The least that two ranks must do for an all-reduce over a socket: each sends half of its elements
// to the other, sums what it gets, and sends the sums back.
#ifndef CADRE_BENCH_COLLECTIVES_SOCKET_LOOP_H_
#define CADRE_BENCH_COLLECTIVES_SOCKET_LOOP_H_

#include <cstddef>
#include <string>
#include <vector>

#include "base/scoped_fd.h"
#include "cadre/result.h"
#include "cadre/worker.h"

namespace cadre {

class SocketLoop {
 public:
  enum class Wait { kSpin, kPoll };

  // Call it in both of the two ranks.
  static Result<SocketLoop> Connect(Worker& worker, Wait wait);

  // Sums the first `count` elements of both ranks into `data`.
  Status AllReduce(float* data, size_t count);
  Status Barrier();

 private:
  SocketLoop(ScopedFd socket, int rank, Wait wait)
      : socket_(std::move(socket)), rank_(rank), wait_(wait) {}
  Status Exchange(const void* send, size_t send_bytes, void* receive, size_t receive_bytes);

  ScopedFd socket_;
  int rank_;
  Wait wait_;
  std::vector<float> received_;
};

}  // namespace cadre

#endif  // CADRE_BENCH_COLLECTIVES_SOCKET_LOOP_H_
