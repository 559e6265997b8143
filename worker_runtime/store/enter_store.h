// A rank's way into a store that another process serves over TCP: both prove that they know the
// store's key (worker_runtime/sockets/handshake.h), which never crosses the network.
#ifndef CADRE_WORKER_RUNTIME_STORE_ENTER_STORE_H_
#define CADRE_WORKER_RUNTIME_STORE_ENTER_STORE_H_

#include <string>

#include "absl/time/time.h"
#include "cadre/result.h"
#include "worker_runtime/store/entry.h"

namespace cadre::store {

// For connecting and for the proofs.
inline constexpr absl::Duration kEnterTimeout = absl::Seconds(5);

struct StoreAddress {
  std::string endpoint;  // "10.0.0.1:4567"
  std::string key;       // known to the ranks alone; never logged
};

// For calls of rpc/worker_protocol.h without a token, encrypted where CADRE_ENCRYPT says so. Waits
// kEnterTimeout at most. A peer whose machine has gone is noticed within 15 s.
//   UNAVAILABLE        nobody listens there, or it did not answer, or not yet
//   PERMISSION_DENIED  who listens there does not know the key
//   FAILED_PRECONDITION  one side encrypts and the other does not
Result<Entry> EnterStore(const StoreAddress& at, int rank);

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_ENTER_STORE_H_
