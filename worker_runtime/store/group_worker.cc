#include "worker_runtime/store/group_worker.h"

#include <chrono>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker_runtime/absl_types.h"

namespace cadre::store {

GroupWorker::GroupWorker(Worker* worker, std::string name, const WorkerPlace& place)
    : worker_(*worker), name_(std::move(name)), place_(place) {}

std::string GroupWorker::Key(std::string_view key) const {
  return absl::StrCat(name_, "/", ToAbsl(key));
}

Status GroupWorker::Set(std::string_view key, std::string_view value) {
  return worker_.Set(Key(key), value);
}

Result<std::string> GroupWorker::Get(std::string_view key, std::chrono::nanoseconds timeout) {
  return worker_.Get(Key(key), timeout);
}

Result<int64_t> GroupWorker::Add(std::string_view key, int64_t delta) {
  return worker_.Add(Key(key), delta);
}

Result<std::string> GroupWorker::CompareAndSet(std::string_view key, std::string_view expected,
                                               std::string_view desired) {
  return worker_.CompareAndSet(Key(key), expected, desired);
}

Status GroupWorker::Delete(std::string_view key) { return worker_.Delete(Key(key)); }

Status GroupWorker::Barrier(std::string_view name, std::chrono::nanoseconds timeout) {
  // The store's barriers include the whole world, so this one uses a counter and a key.
  const std::string prefix = absl::StrCat("barrier/", ToAbsl(name), "/");
  ASSIGN_OR_RETURN(const int64_t entered, Add(absl::StrCat(prefix, "entered"), 1));
  const int64_t round = (entered - 1) / place_.world_size;
  const std::string open = absl::StrCat(prefix, "open/", round);
  if (entered % place_.world_size == 0) return Set(open, "");
  return Get(open, timeout).status();
}

Status GroupWorker::PublishCommunicatorId(std::string_view communicator, std::string_view id) {
  return worker_.PublishCommunicatorId(Key(communicator), id);
}

Result<std::string> GroupWorker::CommunicatorId(std::string_view communicator,
                                                std::chrono::nanoseconds timeout) {
  return worker_.CommunicatorId(Key(communicator), timeout);
}

void GroupWorker::ReportProgress(int64_t step, double samples_per_second, double loss) {
  worker_.ReportProgress(step, samples_per_second, loss);
}

}  // namespace cadre::store
