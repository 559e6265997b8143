#include "worker_runtime/store/group_worker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre::store {

GroupWorker::GroupWorker(Worker* worker, std::string name, const WorkerPlace& place)
    : worker_(*worker), name_(std::move(name)), place_(place) {}

std::string GroupWorker::Key(absl::string_view key) const { return absl::StrCat(name_, "/", key); }

absl::Status GroupWorker::Set(absl::string_view key, absl::string_view value) {
  return worker_.Set(Key(key), value);
}

absl::StatusOr<std::string> GroupWorker::Get(absl::string_view key, absl::Duration timeout) {
  return worker_.Get(Key(key), timeout);
}

absl::StatusOr<int64_t> GroupWorker::Add(absl::string_view key, int64_t delta) {
  return worker_.Add(Key(key), delta);
}

absl::StatusOr<std::string> GroupWorker::CompareAndSet(absl::string_view key,
                                                       absl::string_view expected,
                                                       absl::string_view desired) {
  return worker_.CompareAndSet(Key(key), expected, desired);
}

absl::Status GroupWorker::Delete(absl::string_view key) { return worker_.Delete(Key(key)); }

absl::Status GroupWorker::Barrier(absl::string_view name, absl::Duration timeout) {
  // The store's barriers are the whole world's, so this one is a count and a key.
  const std::string prefix = absl::StrCat("barrier/", name, "/");
  ASSIGN_OR_RETURN(const int64_t entered, Add(absl::StrCat(prefix, "entered"), 1));
  const int64_t round = (entered - 1) / place_.world_size;
  const std::string open = absl::StrCat(prefix, "open/", round);
  if (entered % place_.world_size == 0) return Set(open, "");
  return Get(open, timeout).status();
}

absl::Status GroupWorker::PublishCommunicatorId(absl::string_view communicator,
                                                absl::string_view id) {
  return worker_.PublishCommunicatorId(Key(communicator), id);
}

absl::StatusOr<std::string> GroupWorker::CommunicatorId(absl::string_view communicator,
                                                        absl::Duration timeout) {
  return worker_.CommunicatorId(Key(communicator), timeout);
}

void GroupWorker::ReportProgress(int64_t step, double samples_per_second, double loss) {
  worker_.ReportProgress(step, samples_per_second, loss);
}

}  // namespace cadre::store
