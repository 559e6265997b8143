// The log in which the core's records are stored so that they outlive the server, and what its
// kinds (sqlite_log.h, etcd_log.h) share: records in rows, conversion of their times to another
// clock, and the format of the state.
#ifndef CADRE_RENDEZVOUS_LOG_RECORD_LOG_H_
#define CADRE_RENDEZVOUS_LOG_RECORD_LOG_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/record.pb.h"

namespace cadre::log {

// A row of this size is full.
inline constexpr size_t kRowBytes = 1 << 20;

// Records in the form in which they are saved: encoded, which takes a tenth of the memory of
// messages, and in rows of limited size. One thread.
class RecordRows {
 public:
  struct Row {
    // A v1::RecordBatch that contains only records.
    std::string bytes;
    int64_t records = 0;
  };

  RecordRows() = default;
  // Implicit, because lists of records are meant to convert.
  RecordRows(const std::vector<v1::Record>& records);
  RecordRows(std::initializer_list<v1::Record> records);

  void Add(const v1::Record& record);
  // Appends these rows.
  void AddAll(RecordRows later);

  bool empty() const { return rows_.empty(); }
  // The number of records, not of rows.
  size_t size() const;
  const std::vector<Row>& rows() const { return rows_; }
  std::vector<v1::Record> Decoded() const;

 private:
  std::vector<Row> rows_;
};

// Replaces all records of a log by fewer records that give the same state. One thread.
class Compactor {
 public:
  virtual ~Compactor() = default;
  // Receives all records, in order.
  virtual void Add(const v1::Record& record) = 0;
  // Called once, after all records were added; returns the records that replace them.
  virtual RecordRows Take() = 0;
};

// Used by one thread at a time, except that Compact may run concurrently.
class RecordLog {
 public:
  virtual ~RecordLog() = default;

  // Identifies the state: constant as long as the log exists.
  virtual uint64_t server_id() const = 0;

  // Whether no other server can write to the log while this one runs: then only this server decides
  // which nodes are lost, even while it cannot save.
  virtual bool has_one_owner() const { return false; }

  // Appends all records or none; they are durable when it returns OK. After an error the log is
  // unchanged and the same call may be repeated:
  //   RESOURCE_EXHAUSTED  no room
  //   UNAVAILABLE         the disk fails, or etcd cannot be reached
  //   DATA_LOSS           what was written before is missing: only a restart helps
  //   ABORTED             another server has the state: this one must not send anything more
  virtual absl::Status Append(const RecordRows& records) = 0;

  // Whether the log has become much larger than a snapshot would be. Must not be called during a
  // compaction.
  virtual bool WantsCompaction() const { return false; }
  // Replaces all records in the log by those that `compactor` makes of them. Errors are those of
  // Append, and CANCELLED once `stop` is set; the log is then unchanged.
  //
  // It runs on a thread of its own while other threads append: it reads and writes pieces of some 1
  // MiB, and an Append waits for one piece at most. Records appended meanwhile follow the snapshot.
  virtual absl::Status Compact(Compactor&, const std::atomic<bool>&) { return absl::OkStatus(); }
};

// A log and its records, in order, with times converted to this machine's current clocks.
struct OpenedLog {
  std::unique_ptr<RecordLog> log;
  std::vector<v1::Record> records;
};

// --- times in records, which are on the monotonic clock of the machine that wrote them ---

// A monotonic clock and its relation to the wall clock.
struct ClockBase {
  // Identifies one boot of the machine: monotonic times of different boots cannot be compared.
  std::string boot_id;
  // The wall clock at monotonic time 0, in microseconds since the Unix epoch.
  int64_t unix_us_at_zero = 0;
  // The monotonic time when this was read. Not stored with records.
  int64_t now_us = std::numeric_limits<int64_t>::max();
};

// The current clock of this machine.
ClockBase ThisClockBase();

// What to add to times on `from` to get times on `to`. Within one boot it is 0, even if the wall
// clock was changed.
int64_t ShiftBetween(const ClockBase& from, const ClockBase& to);

// Adds `shift_us` to every time in the record. 0 means "not yet" and is kept.
void ShiftTimes(int64_t shift_us, v1::Record* record);

// The clock of the records from index `begin` on, up to the next WrittenOn.
struct WrittenOn {
  size_t begin = 0;
  ClockBase clock;
};

// Converts all times to the clock `to`. Wall clocks are changed, and differ between machines, but
// recorded times are in the past: the newest time of each clock becomes now at the latest, and its
// other times keep their distance from it. Returns the shift of each clock.
std::vector<int64_t> MoveToClock(const std::vector<WrittenOn>& written_on, const ClockBase& to,
                                 std::vector<v1::Record>* records);

// --- the format of a state ---
//
// Each log stores the number of its format. A new field of a record or of the state does not change
// the format; it is raised when a message or the layout of a log changes its meaning. From format 3
// on, the first whose state is declared in proto/state.proto, a log converts an older one when it
// is opened.

// The format that this version writes, in a state directory and in etcd.
inline constexpr int64_t kStateFormat = 3;

struct ReadableFormats {
  int64_t oldest = kStateFormat;
  int64_t newest = kStateFormat;
};

// FAILED_PRECONDITION, one line, if this version cannot read `format`. `what` names the state, and
// `otherwise` is the user's alternative: "move the directory away".
absl::Status CheckStateFormat(absl::string_view what, int64_t format, absl::string_view otherwise,
                              const ReadableFormats& reads = {});

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_RECORD_LOG_H_
