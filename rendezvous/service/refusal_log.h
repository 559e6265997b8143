// What a server's log says of callers whom it did not let in: enough to find a node with an old
// token, and no more than a stranger may fill a disk with. Pure; one thread at a time.
#ifndef CADRE_RENDEZVOUS_SERVICE_REFUSAL_LOG_H_
#define CADRE_RENDEZVOUS_SERVICE_REFUSAL_LOG_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "base/time.h"

namespace cadre::service {

// The same is said again after this long, of this many addresses.
inline constexpr absl::Duration kRefusalSaidAgain = absl::Minutes(1);
inline constexpr size_t kRefusalsSaid = 32;

class RefusalLog {
 public:
  // The line for a refusal; nullopt: it is counted, and the next line says how many were.
  std::optional<std::string> Line(MonoTime now, const std::string& address, const std::string& why);

 private:
  // When each was said, within the last minute.
  std::map<std::string, MonoTime> said_;
  uint64_t unsaid_ = 0;
};

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_REFUSAL_LOG_H_
