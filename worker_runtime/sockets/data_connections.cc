#include "worker_runtime/sockets/data_connections.h"

#include <sys/socket.h>

#include <utility>

namespace cadre::sockets {

DataConnections::DataConnections(std::vector<ScopedFd> collectives, std::vector<ScopedFd> messages)
    : collectives_(std::move(collectives)), messages_(std::move(messages)) {}

void DataConnections::Break(const Status& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) return;
    broken_ = reason;
  }
  // Not closed: a thread that waits for one must not find another file under its number.
  for (const auto* const sockets : {&collectives_, &messages_}) {
    for (const ScopedFd& socket : *sockets) {
      if (socket.ok()) shutdown(socket.get(), SHUT_RDWR);
    }
  }
}

void DataConnections::Lose(int peer) {
  for (const auto* const sockets : {&collectives_, &messages_}) {
    shutdown((*sockets)[peer].get(), SHUT_RDWR);
  }
}

Status DataConnections::broken() const {
  absl::MutexLock lock(&mutex_);
  return broken_;
}

}  // namespace cadre::sockets
