// Where the core's records are kept so that they outlive the server. One thread at a time, but for
// Compact.
#ifndef CADRE_RENDEZVOUS_LOG_RECORD_LOG_H_
#define CADRE_RENDEZVOUS_LOG_RECORD_LOG_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "proto/record.pb.h"
#include "rendezvous/log/record_rows.h"

namespace cadre::log {

// Gives fewer records for all of a log's: those that give the same state. One thread.
class Shortener {
 public:
  virtual ~Shortener() = default;
  // All that there are, in order.
  virtual void Add(const v1::Record& record) = 0;
  // Once, after all were added.
  virtual RecordRows Take() = 0;
};

class RecordLog {
 public:
  virtual ~RecordLog() = default;

  // One life of the state: the same for as long as the log is.
  virtual uint64_t server_id() const = 0;

  // Whether nobody else can write to it as long as this server runs: then this server alone says
  // who is lost, also while it can save nothing.
  virtual bool has_one_owner() const { return false; }

  // All of them or none; durable when it returns OK. After an error nothing has changed and
  // the same call may be made again:
  //   RESOURCE_EXHAUSTED  no room
  //   UNAVAILABLE         the disk does not do what it is asked to, or etcd is away
  //   DATA_LOSS           what was written before is no longer there: only a new start helps
  //   ABORTED             the state is another server's now: this one may say nothing more
  virtual absl::Status Append(const RecordRows& records) = 0;

  // Whether the log has grown far beyond what a snapshot needs. Not while it is being compacted.
  virtual bool WantsCompaction() const { return false; }
  // Replaces all records that are there by those that `shortener` makes of them. Errors as
  // Append's, and CANCELLED once `stop` is set: the log is then as it was.
  //
  // On a thread of its own, while the others go on: it reads and writes in pieces of some 1 MiB,
  // and an Append waits for one of these at most. What is appended meanwhile stays behind the
  // snapshot.
  virtual absl::Status Compact(Shortener&, const std::atomic<bool>&) { return absl::OkStatus(); }
};

// A log with what it holds, in order, on this machine's clocks as they are now.
struct OpenedLog {
  std::unique_ptr<RecordLog> log;
  std::vector<v1::Record> records;
};

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_RECORD_LOG_H_
