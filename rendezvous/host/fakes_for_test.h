// Fakes for tests of the server: a node's sink, and a log.
#ifndef CADRE_RENDEZVOUS_HOST_FAKES_FOR_TEST_H_
#define CADRE_RENDEZVOUS_HOST_FAKES_FOR_TEST_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "rendezvous/host/stream_registry.h"
#include "rendezvous/log/record_log.h"

namespace cadre::host {

// A node whose messages are dropped.
class DiscardingSink final : public NodeSink {
 public:
  void Send(v1::ServerMessage) override {}
  void Close(const absl::Status&) override {}
};

// A log on a full disk, until a test makes room.
class FullDiskLog final : public log::RecordLog {
 public:
  struct Room {
    absl::Mutex mutex;
    bool is_there = true;
    int refused = 0;
  };
  explicit FullDiskLog(std::shared_ptr<Room> room) : room_(std::move(room)) {}

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

#endif  // CADRE_RENDEZVOUS_HOST_FAKES_FOR_TEST_H_
