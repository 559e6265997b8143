#ifndef CADRE_RENDEZVOUS_HOST_FULL_LOG_FOR_TEST_H_
#define CADRE_RENDEZVOUS_HOST_FULL_LOG_FOR_TEST_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "rendezvous/log/record_log.h"

namespace cadre::host {

// A disk without room until somebody makes some.
class FullLog final : public log::RecordLog {
 public:
  struct Room {
    absl::Mutex mutex;
    bool is_there = true;
    int refused = 0;
  };
  explicit FullLog(std::shared_ptr<Room> room) : room_(std::move(room)) {}

  uint64_t server_id() const override { return 1; }
  bool has_one_owner() const override { return true; }
  absl::Status Append(const log::RecordRows&) override {
    const absl::MutexLock lock(&room_->mutex);
    if (room_->is_there) return absl::OkStatus();
    ++room_->refused;
    return absl::ResourceExhaustedError("no room");
  }

 private:
  const std::shared_ptr<Room> room_;
};

}  // namespace cadre::host

#endif  // CADRE_RENDEZVOUS_HOST_FULL_LOG_FOR_TEST_H_
