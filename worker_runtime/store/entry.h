// A connection by which somebody has come into a store.
#ifndef CADRE_WORKER_RUNTIME_STORE_ENTRY_H_
#define CADRE_WORKER_RUNTIME_STORE_ENTRY_H_

#include <optional>
#include <utility>

#include "worker_runtime/wire/record_cipher.h"

namespace cadre::store {

struct Entry {
  Entry(int socket) : socket(socket) {}  // NOLINT: implicit, since in clear it is all there is
  Entry(int socket, wire::RecordKeys keys) : socket(socket), keys(std::move(keys)) {}

  int socket = -1;  // non-blocking, and whoever has this closes it; -1: there is none
  // What its frames are sealed and opened with; nullopt: they go in clear.
  std::optional<wire::RecordKeys> keys;
};

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_ENTRY_H_
