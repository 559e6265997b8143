// Where the ranks of a launch find the store that rank 0 serves: a file, an address, or a key of
// torchrun's store. One thread.
#ifndef CADRE_WORKER_RUNTIME_LAUNCHED_MEETING_PLACE_H_
#define CADRE_WORKER_RUNTIME_LAUNCHED_MEETING_PLACE_H_

#include <string>

#include "absl/time/time.h"
#include "base/scoped_fd.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "worker_runtime/store/enter_store.h"

namespace cadre::launched {

// Of rank 0's store, before it is served.
struct Door {
  ScopedFd listener;
  std::string key;
};

class MeetingPlace {
 public:
  virtual ~MeetingPlace() = default;

  // Of rank 0, in this order: listens; tells the others that it serves; all have come.
  virtual Result<Door> Open() = 0;
  virtual Status Announce(const Door& door, const std::string& endpoint) = 0;
  virtual void Close() {}

  // Of the others: where to try. What it says may be left of an earlier launch, so it is asked
  // again after each attempt. NOT_FOUND: rank 0 has said nothing yet. Other errors are final.
  virtual Result<store::StoreAddress> Find() = 0;

  // For how long somebody who does not know the secret may still be one of an earlier launch.
  virtual absl::Duration RefusalPatience() const = 0;
  // What to do where ranks do not find each other; may be empty.
  virtual std::string Advice() const { return ""; }
};

}  // namespace cadre::launched

#endif  // CADRE_WORKER_RUNTIME_LAUNCHED_MEETING_PLACE_H_
