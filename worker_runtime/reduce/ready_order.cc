#include "worker_runtime/reduce/ready_order.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "worker_runtime/reduce/bucket.h"
#include "worker_runtime/wait_or_abort.h"

namespace cadre::reduce {

absl::StatusOr<std::vector<size_t>> AgreeOnReadyOrder(Communicator& communicator,
                                                      absl::Span<const size_t> ready, size_t count,
                                                      absl::Duration timeout) {
  std::vector<int32_t> order(ready.begin(), ready.end());
  std::vector<bool> seen(count);
  for (const size_t i : ready) seen[i] = true;
  for (const size_t i : ReverseOrder(count)) {
    if (!seen[i]) order.push_back(static_cast<int32_t>(i));
  }
  CADRE_CHECK(order.size() == count, "an order of ", order.size(), " of ", count, " gradients");
  if (communicator.size() > 1) {
    const absl::Status sent = WaitOrAbort(
        communicator, communicator.Broadcast({order.data(), order.size(), DataType::kInt32}, 0),
        timeout);
    if (!sent.ok()) {
      return absl::Status(
          sent.code(),
          absl::StrCat("broadcast of the order in which gradients become ready: ", sent.message()));
    }
  }
  return std::vector<size_t>(order.begin(), order.end());
}

}  // namespace cadre::reduce
