// A connection by which somebody has come into a store.
#ifndef CADRE_WORKER_RUNTIME_STORE_ENTRY_H_
#define CADRE_WORKER_RUNTIME_STORE_ENTRY_H_

#include <optional>
#include <utility>

#include "base/scoped_fd.h"
#include "worker_runtime/wire/record_cipher.h"

namespace cadre::store {

struct Entry {
  // A socket alone is an entry in clear.
  Entry(ScopedFd socket, std::optional<wire::RecordKeys> keys = std::nullopt)  // NOLINT: implicit
      : socket(std::move(socket)), keys(std::move(keys)) {}

  ScopedFd socket;  // non-blocking; there may be none
  // What its frames are sealed and opened with; nullopt: they go in clear.
  std::optional<wire::RecordKeys> keys;
};

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_ENTRY_H_
