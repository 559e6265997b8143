#include "worker_runtime/sockets/data_connections.h"

#include <sys/socket.h>

#include <utility>

namespace cadre::sockets {

DataConnections::DataConnections(std::vector<wire::Connection> collectives,
                                 std::vector<wire::Connection> messages)
    : collectives_(std::move(collectives)), messages_(std::move(messages)) {}

void DataConnections::Break(const Status& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) return;
    broken_ = reason;
  }
  // Not closed: a thread that waits for one must not find another file under its number.
  for (const auto* const connections : {&collectives_, &messages_}) {
    for (const wire::Connection& connection : *connections) {
      if (connection.ok()) shutdown(connection.fd(), SHUT_RDWR);
    }
  }
}

void DataConnections::Lose(int peer) {
  for (const auto* const connections : {&collectives_, &messages_}) {
    shutdown((*connections)[peer].fd(), SHUT_RDWR);
  }
}

Status DataConnections::broken() const {
  absl::MutexLock lock(&mutex_);
  return broken_;
}

}  // namespace cadre::sockets
