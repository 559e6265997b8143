// A Compactor with a prepared snapshot, for tests.
#ifndef CADRE_RENDEZVOUS_LOG_COMPACTOR_FOR_TEST_H_
#define CADRE_RENDEZVOUS_LOG_COMPACTOR_FOR_TEST_H_

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "rendezvous/log/record_log.h"

namespace cadre::log {

class ReadySnapshot final : public Compactor {
 public:
  // `meanwhile` runs after all records have been read and before the snapshot is written.
  explicit ReadySnapshot(RecordRows snapshot, std::function<void()> meanwhile = nullptr)
      : snapshot_(std::move(snapshot)), meanwhile_(std::move(meanwhile)) {}

  void Add(const v1::Record& record) override { shown_.push_back(record.job()); }
  RecordRows Take() override {
    if (meanwhile_) meanwhile_();
    return std::move(snapshot_);
  }
  // The jobs of the records that were read.
  const std::vector<std::string>& shown() const { return shown_; }

 private:
  RecordRows snapshot_;
  const std::function<void()> meanwhile_;
  std::vector<std::string> shown_;
};

inline absl::Status CompactTo(RecordRows snapshot, RecordLog& log) {
  ReadySnapshot compactor(std::move(snapshot));
  const std::atomic<bool> stop{false};
  return log.Compact(compactor, stop);
}

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_COMPACTOR_FOR_TEST_H_
