// The stacks of a job's workers, for `cadre stacks`: which nodes to ask, and their answers grouped.
// Of a thousand ranks nine hundred and ninety-nine usually wait at the same line. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_CORE_STACKS_H_
#define CADRE_RENDEZVOUS_CORE_STACKS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "proto/control.pb.h"
#include "proto/stacks.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/job/jobs.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/stream_ids.h"

namespace cadre {

// The nodes to ask.
struct StackSources {
  struct Node {
    saved::Member member;
    // Absent if the node cannot be asked.
    std::optional<StreamId> stream;
    // If absent, the reason in words: the node is not connected, or its version could not answer.
    std::string why;
  };
  std::string job;
  uint64_t generation = 0;
  uint32_t world_size = 0;
  std::vector<Node> nodes;
};

// Finds the nodes to ask. NOT_FOUND: there is no such job. FAILED_PRECONDITION: none of its workers
// runs, or it has no such rank.
absl::StatusOr<StackSources> FindStacks(const v1::GetStacksRequest& request,
                                        const state::State& state, const job::Jobs& jobs);

// The limit of all groups together, which are one message.
inline constexpr size_t kMaxStackGroupsBytes = 640 << 10;
// Limits of one stack.
inline constexpr int kMaxGroupedFrames = 128;
inline constexpr size_t kMaxGroupedTextBytes = 256 << 10;

// Groups the ranks of a job by where they are.
class StackGroups {
 public:
  // Adds what the node of `member` reports about one of its workers. Local ranks that the member
  // does not have, or that were added before, are ignored. Ranks share a group if their
  // interpreters are in the same calls at the same lines or, without an interpreter, if they look
  // alike to the kernel and in their progress pages.
  void Add(const saved::Member& member, const v1::RankStack& reported);
  bool empty() const { return groups_.empty(); }
  // Returns the groups, the largest first; of equal ones that with the lowest rank.
  google::protobuf::RepeatedPtrField<v1::StackGroup> Take();

 private:
  struct Group {
    std::set<uint32_t> ranks;
    v1::RankStack first;
  };
  // Keyed by what the ranks of a group have in common.
  std::map<std::string, Group> groups_;
  std::set<uint32_t> added_;
  size_t bytes_ = 0;
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_CORE_STACKS_H_
