// The store of one generation in this process's memory: keys, barriers and communicator ids, with
// the limits and errors of proto/store.proto.
#ifndef CADRE_WORKER_RUNTIME_GENERATION_STORE_H_
#define CADRE_WORKER_RUNTIME_GENERATION_STORE_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre {

constexpr size_t kMaxGenerationKeys = 65536;
constexpr size_t kMaxGenerationBytes = size_t{256} << 20;

// Thread safe; calls with a timeout block.
class GenerationStore {
 public:
  explicit GenerationStore(int world_size) : world_size_(world_size) {}

  absl::Status Set(absl::string_view key, absl::string_view value);
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout);
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta);
  absl::StatusOr<std::string> CompareAndSet(absl::string_view key, absl::string_view expected,
                                            absl::string_view desired);
  absl::Status Delete(absl::string_view key);
  absl::Status Barrier(int rank, absl::string_view name, absl::Duration timeout);
  absl::Status PublishCommunicatorId(absl::string_view communicator, absl::string_view id);
  absl::StatusOr<std::string> CommunicatorId(absl::string_view communicator,
                                             absl::Duration timeout);

  // Waits end, and every call fails from now on, with this.
  void End(const absl::Status& why);

 private:
  struct BarrierState {
    uint64_t round = 0;
    std::set<int> entered;
  };
  using Lock = std::unique_lock<std::mutex>;

  // All with mutex_ held.
  absl::Status Check(absl::string_view key, absl::string_view value) const;
  absl::Status Write(absl::string_view key, absl::string_view value);
  std::string Missing(const std::set<int>& entered) const;
  // Until `answered`, or the end; false when that did not come in time.
  bool Wait(Lock& lock, absl::Duration timeout, const std::function<bool()>& answered);

  const int world_size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status end_;  // OK: not yet
  std::map<std::string, std::string> values_;
  size_t bytes_ = 0;
  std::map<std::string, BarrierState> barriers_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_GENERATION_STORE_H_
