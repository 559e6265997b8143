// Reads of workers' log files that wait for a node's agent. Bounded in number and time. One thread.
#ifndef CADRE_RENDEZVOUS_HOST_LOG_READS_H_
#define CADRE_RENDEZVOUS_HOST_LOG_READS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "rendezvous/core/event.h"

namespace cadre::host {

// How many may wait, for how long, and how much one gives.
inline constexpr size_t kLogReadsMax = 256;
// Of one user's jobs.
inline constexpr size_t kLogReadsOfUserMax = 64;
inline constexpr absl::Duration kLogReadTimeout = absl::Seconds(8);
inline constexpr uint32_t kLogChunkBytes = 64 << 10;

// Whether it may go better a moment later: an agent or a server is away, or too many ask at once.
bool MayReadLater(const absl::Status& why);

class LogReads {
 public:
  using Done = std::function<void(absl::StatusOr<v1::ReadLogReply>)>;

  // The number by which the agent's answer is known; `done` is called once. `ended`: nothing writes
  // the file any more, and one that is not there will not come (FAILED_PRECONDITION for NOT_FOUND).
  // RESOURCE_EXHAUSTED: too many wait, and it is not called. `owner`: whose the job is; empty: the
  // administrators', who have no limit of their own.
  absl::StatusOr<uint64_t> Add(StreamId stream, bool ended, MonoTime now, Done done,
                               const std::string& owner = "");
  // A chunk that came on this stream. It is dropped if another stream was asked for it.
  void Take(StreamId stream, const v1::LogChunk& chunk);
  void EndOfStream(StreamId stream);
  void Expire(MonoTime now);
  void EndAll(const absl::Status& why);
  MonoTime NextDeadline() const;

 private:
  struct Read {
    StreamId stream;
    bool ended;
    MonoTime deadline;
    Done done;
    std::string owner;
  };
  template <typename Which>
  void End(const Which& which, const absl::Status& why);

  // By number; later ones have later deadlines.
  std::map<uint64_t, Read> reads_;
  uint64_t last_ = 0;
};

}  // namespace cadre::host

#endif  // CADRE_RENDEZVOUS_HOST_LOG_READS_H_
