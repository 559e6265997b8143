// The connections on which a communicator's data goes, and the end of them all.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_DATA_CONNECTIONS_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_DATA_CONNECTIONS_H_

#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cadre/status.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::sockets {

// Thread safe.
class DataConnections {
 public:
  // By rank.
  DataConnections(std::vector<wire::Connection> collectives,
                  std::vector<wire::Connection> messages);

  const std::vector<wire::Connection>& collectives() const { return collectives_; }
  const std::vector<wire::Connection>& messages() const { return messages_; }

  // Ends all waits for these connections, now and later, here and at the peers. The first reason
  // stays.
  void Break(const Status& reason);
  // Ends those for this peer's, once what it has sent is read.
  void Lose(int peer);
  // OK until Break().
  Status broken() const;

 private:
  const std::vector<wire::Connection> collectives_;
  const std::vector<wire::Connection> messages_;
  mutable absl::Mutex mutex_;
  Status broken_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_DATA_CONNECTIONS_H_
