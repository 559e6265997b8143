// Saves a batch of records while its caller does something else.
#ifndef CADRE_RENDEZVOUS_HOST_BATCH_SAVER_H_
#define CADRE_RENDEZVOUS_HOST_BATCH_SAVER_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rendezvous/log/record_log.h"

namespace cadre::host {

// Used by one thread. From Begin until Take has given the outcome nobody else uses the log.
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
};

}  // namespace cadre::host

#endif  // CADRE_RENDEZVOUS_HOST_BATCH_SAVER_H_
