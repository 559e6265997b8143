// Requests of the server that wait for the answers of nodes' agents: reads of workers' log files,
// and the stacks of a job's workers. Both are limited in number and time. One thread.
#ifndef CADRE_RENDEZVOUS_HOST_AGENT_REQUESTS_H_
#define CADRE_RENDEZVOUS_HOST_AGENT_REQUESTS_H_

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
#include "proto/stacks.pb.h"
#include "rendezvous/core/core_event.h"
#include "rendezvous/core/stacks.h"
#include "rendezvous/step/stream_ids.h"

namespace cadre::host {

// --- reads of log files ---

// How many reads may wait, for how long, and how many bytes one returns.
inline constexpr size_t kLogReadsMax = 256;
// The limit of reads for the jobs of one user.
inline constexpr size_t kLogReadsOfUserMax = 64;
inline constexpr absl::Duration kLogReadTimeout = absl::Seconds(8);
inline constexpr uint32_t kLogChunkBytes = 64 << 10;

// Whether a retry may succeed: an agent or a server is away, or there are too many requests.
bool MayReadLater(const absl::Status& why);

class LogReads {
 public:
  using Done = std::function<void(absl::StatusOr<v1::ReadLogReply>)>;

  // Returns the number that identifies the agent's answer; `done` is called once. `ended`: nothing
  // writes the file any more, so one that is missing will not appear (FAILED_PRECONDITION for
  // NOT_FOUND). RESOURCE_EXHAUSTED: too many reads wait, and `done` is not called. `owner` is the
  // user who owns the job; empty: an administrator, for whom only the common limit holds.
  absl::StatusOr<uint64_t> Add(StreamId stream, bool ended, MonoTime now, Done done,
                               const std::string& owner = "");
  // Handles a chunk from this stream. It is dropped if another stream was asked for it.
  void OnChunk(StreamId stream, const v1::LogChunk& chunk);
  void OnStreamClosed(StreamId stream);
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

  // The keys are numbers; higher ones have later deadlines.
  std::map<uint64_t, Read> reads_;
  uint64_t last_ = 0;
};

// --- stacks of workers: nodes that have not answered in time are named ---

// How many may wait, and for how long: an agent waits a second for interpreters, and needs ten more
// for native stacks (agent/evidence/evidence_collector.h).
inline constexpr size_t kStackRequestsMax = 64;
// The limit of requests for the jobs of one user.
inline constexpr size_t kStackRequestsOfUserMax = 16;
inline constexpr absl::Duration kStacksTimeout = absl::Milliseconds(2500);
inline constexpr absl::Duration kNativeStacksTimeout = absl::Seconds(13);
// The limit of silent nodes that are named.
inline constexpr int kSilentNodesMax = 256;

class StackRequests {
 public:
  using Done = std::function<void(absl::StatusOr<v1::GetStacksReply>)>;

  // Returns the number that identifies the answers of the connected nodes. `done` is called once;
  // at once if no node is connected. RESOURCE_EXHAUSTED: too many requests wait, and `done` is not
  // called. `owner`: as for LogReads.
  absl::StatusOr<uint64_t> Add(const StackSources& sources, const v1::StackQuestion& question,
                               MonoTime now, Done done, const std::string& owner = "");
  // Handles an answer from this stream. It is dropped if the stream was not asked.
  void OnAnswer(StreamId stream, const v1::NodeStacks& stacks);
  void OnStreamClosed(StreamId stream);
  void Expire(MonoTime now);
  void EndAll(const absl::Status& why);
  MonoTime NextDeadline() const;

 private:
  struct Request {
    MonoTime deadline;
    absl::Duration limit;
    Done done;
    std::string owner;
    v1::GetStacksReply reply;
    StackGroups groups;
    std::map<StreamId, saved::Member> awaited;
  };
  using Requests = std::map<uint64_t, Request>;
  // Returns the next request.
  Requests::iterator End(Requests::iterator request);

  Requests requests_;
  uint64_t last_ = 0;
};

}  // namespace cadre::host

#endif  // CADRE_RENDEZVOUS_HOST_AGENT_REQUESTS_H_
