// What ranks tell each other before they form an NCCL communicator over one that they have: so that
// all of them form it, or all get the same error. Pure.
#ifndef CADRE_WORKER_RUNTIME_NCCL_NCCL_OFFERS_H_
#define CADRE_WORKER_RUNTIME_NCCL_NCCL_OFFERS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre::nccl {

// A message has as many bytes on every rank; longer texts are cut.
inline constexpr size_t kNcclOfferBytes = 512;

struct NcclOffer {
  // Not OK: why this rank cannot take part. The rest then does not count.
  Status status;
  // Which GPU it is, of which machine: equal on two ranks where they have the same one. Empty: not
  // compared, as once the communicator is formed.
  std::string gpu;
  // Of a rank with a root (root_plan.h); empty on the others.
  std::string id;
};

std::string WriteNcclOffer(const NcclOffer& offer);

// All ranks' messages, one behind the other. The roots' ids, in order.
//   the first rank's error, which it names
//   FAILED_PRECONDITION  two ranks have one GPU, which NCCL does not take
//   INTERNAL             a message that WriteNcclOffer() did not write
Result<std::vector<std::string>> AgreeOnNcclIds(const std::string& messages);

}  // namespace cadre::nccl

#endif  // CADRE_WORKER_RUNTIME_NCCL_NCCL_OFFERS_H_
