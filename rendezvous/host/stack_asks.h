// Questions where the workers of a job are, which wait for nodes' agents. Bounded in number and
// time: what has not answered then is named. One thread.
#ifndef CADRE_RENDEZVOUS_HOST_STACK_ASKS_H_
#define CADRE_RENDEZVOUS_HOST_STACK_ASKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "proto/control.pb.h"
#include "proto/stacks.pb.h"
#include "rendezvous/core/stack_groups.h"
#include "rendezvous/core/stack_sources.h"
#include "rendezvous/step/ids.h"

namespace cadre::host {

// How many may wait, and for how long: an agent asks interpreters for a second, and for native
// stacks takes ten more (agent/evidence/stack_collector.h).
inline constexpr size_t kStackAsksMax = 64;
// Of one user's jobs.
inline constexpr size_t kStackAsksOfUserMax = 16;
inline constexpr absl::Duration kStacksTimeout = absl::Milliseconds(2500);
inline constexpr absl::Duration kNativeStacksTimeout = absl::Seconds(13);
// Nodes that are named.
inline constexpr int kSilentNodesMax = 256;

class StackAsks {
 public:
  using Done = std::function<void(absl::StatusOr<v1::GetStacksReply>)>;

  // The number by which the answers of the nodes that are connected are known. `done` is called
  // once; at once where none is. RESOURCE_EXHAUSTED: too many wait, and it is not called. `owner`:
  // as LogReads has it.
  absl::StatusOr<uint64_t> Add(const StackSources& sources, const v1::StackQuestion& question,
                               MonoTime now, Done done, const std::string& owner = "");
  // What came on this stream. It is dropped if that was not asked.
  void Take(StreamId stream, const v1::NodeStacks& stacks);
  void EndOfStream(StreamId stream);
  void Expire(MonoTime now);
  void EndAll(const absl::Status& why);
  MonoTime NextDeadline() const;

 private:
  struct Ask {
    MonoTime deadline;
    absl::Duration limit;
    Done done;
    std::string owner;
    v1::GetStacksReply reply;
    StackGroups groups;
    std::map<StreamId, saved::Member> awaited;
  };
  using Asks = std::map<uint64_t, Ask>;
  // The next one.
  Asks::iterator End(Asks::iterator ask);

  Asks asks_;
  uint64_t last_ = 0;
};

}  // namespace cadre::host

#endif  // CADRE_RENDEZVOUS_HOST_STACK_ASKS_H_
