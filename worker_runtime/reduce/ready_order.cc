#include "worker_runtime/reduce/ready_order.h"

#include <chrono>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/reduce/bucket.h"

namespace cadre::reduce {

Result<std::vector<size_t>> AgreeOnReadyOrder(Communicator& communicator, Span<const size_t> ready,
                                              size_t count, std::chrono::nanoseconds timeout) {
  std::vector<int32_t> order(ready.begin(), ready.end());
  std::vector<bool> seen(count);
  for (const size_t i : ready) seen[i] = true;
  for (const size_t i : ReverseOrder(count)) {
    if (!seen[i]) order.push_back(static_cast<int32_t>(i));
  }
  CADRE_CHECK(order.size() == count, "an order of ", order.size(), " of ", count, " gradients");
  if (communicator.size() > 1) {
    const Status sent = WaitOrAbort(
        communicator, communicator.Broadcast({order.data(), order.size(), DataType::kInt32}, 0),
        timeout);
    if (!sent.ok()) {
      return Status(
          sent.code(),
          absl::StrCat("broadcast of the order in which gradients become ready: ", sent.message()));
    }
  }
  return std::vector<size_t>(order.begin(), order.end());
}

}  // namespace cadre::reduce
