// Saves a batch of records, or makes the log shorter, while its caller does something else.
#ifndef CADRE_RENDEZVOUS_HOST_BATCH_SAVER_H_
#define CADRE_RENDEZVOUS_HOST_BATCH_SAVER_H_

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rendezvous/log/record_log.h"

namespace cadre::host {

// Used by one thread. From Begin until Take has given the outcome nobody else uses the log, but for
// a compaction.
class BatchSaver {
 public:
  struct Outcome {
    absl::Status status;
    absl::Duration took;
    // The records, if they could not be saved.
    log::RecordRows records;
  };

  virtual ~BatchSaver() = default;

  // Appends them to the log. Not before Take has given the outcome of the batch before.
  virtual void Begin(log::RecordLog& log, log::RecordRows records) = 0;
  // The outcome of the last batch, once; nothing while it is still being saved, unless `wait`: then
  // this waits for it.
  virtual std::optional<Outcome> Take(bool wait) = 0;

  // Compacts the log, while batches go on being appended to it. Not before TakeCompacted has given
  // the outcome of the one before. Here: before it returns.
  virtual void BeginCompaction(log::RecordLog& log, std::unique_ptr<log::Shortener> shortener) {
    const std::atomic<bool> stop{false};
    compacted_ = log.Compact(*shortener, stop);
  }
  // The outcome, once; nothing while it goes on.
  virtual std::optional<absl::Status> TakeCompacted() {
    return std::exchange(compacted_, std::nullopt);
  }

 private:
  std::optional<absl::Status> compacted_;
};

}  // namespace cadre::host

#endif  // CADRE_RENDEZVOUS_HOST_BATCH_SAVER_H_
