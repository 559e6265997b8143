// For tests: both ends of a connection in this process.
#ifndef CADRE_WORKER_RUNTIME_WIRE_CONNECTED_PAIR_H_
#define CADRE_WORKER_RUNTIME_WIRE_CONNECTED_PAIR_H_

#include <sys/socket.h>

#include <string>
#include <utility>

#include "base/scoped_fd.h"
#include "gtest/gtest.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::wire {

inline std::pair<Connection, Connection> ConnectedPair(bool is_encrypted = false) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  ScopedFd near(ends[0]), far(ends[1]);
  if (!is_encrypted) return {Connection(std::move(near)), Connection(std::move(far))};
  const std::string one(32, 'a'), other(32, 'b');
  return {Connection(std::move(near), RecordKeys{one, other}),
          Connection(std::move(far), RecordKeys{other, one})};
}

}  // namespace cadre::wire

#endif  // CADRE_WORKER_RUNTIME_WIRE_CONNECTED_PAIR_H_
