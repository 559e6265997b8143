// A compaction whose snapshot is known before.
#ifndef CADRE_RENDEZVOUS_LOG_READY_SNAPSHOT_H_
#define CADRE_RENDEZVOUS_LOG_READY_SNAPSHOT_H_

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "rendezvous/log/record_log.h"

namespace cadre::log {

class ReadySnapshot final : public Shortener {
 public:
  // `meanwhile` runs when all records have been read and none is written yet.
  explicit ReadySnapshot(RecordRows snapshot, std::function<void()> meanwhile = nullptr)
      : snapshot_(std::move(snapshot)), meanwhile_(std::move(meanwhile)) {}

  void Add(const v1::Record& record) override { shown_.push_back(record.job()); }
  RecordRows Take() override {
    if (meanwhile_) meanwhile_();
    return std::move(snapshot_);
  }
  // The jobs of the records.
  const std::vector<std::string>& shown() const { return shown_; }

 private:
  RecordRows snapshot_;
  const std::function<void()> meanwhile_;
  std::vector<std::string> shown_;
};

inline absl::Status CompactTo(RecordRows snapshot, RecordLog& log) {
  ReadySnapshot shortener(std::move(snapshot));
  const std::atomic<bool> stop{false};
  return log.Compact(shortener, stop);
}

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_READY_SNAPSHOT_H_
