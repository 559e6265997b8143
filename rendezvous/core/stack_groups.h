// Groups the ranks of a job by where they are, for people: of a thousand ranks nine hundred and
// ninety-nine wait at the same line. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_CORE_STACK_GROUPS_H_
#define CADRE_RENDEZVOUS_CORE_STACK_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "google/protobuf/repeated_ptr_field.h"
#include "proto/control.pb.h"
#include "proto/stacks.pb.h"
#include "proto/state.pb.h"

namespace cadre {

// Of all groups together, which are one message.
inline constexpr size_t kMaxStackGroupsBytes = 640 << 10;
// Of one stack.
inline constexpr int kMaxGroupedFrames = 128;
inline constexpr size_t kMaxGroupedTextBytes = 256 << 10;

class StackGroups {
 public:
  // What the node of `member` says of one of its workers. A local rank that the member does not
  // have, or of which it has been heard, is not taken. Ranks are in one group if their
  // interpreters are in the same calls at the same lines and, without an interpreter, if they do
  // the same as far as the kernel and their progress pages tell.
  void Add(const saved::Member& member, const v1::RankStack& said);
  bool empty() const { return groups_.empty(); }
  // The largest first; of equal ones that with the lowest rank.
  google::protobuf::RepeatedPtrField<v1::StackGroup> Take();

 private:
  struct Group {
    std::set<uint32_t> ranks;
    v1::RankStack first;
  };
  // By what is the same of all their ranks.
  std::map<std::string, Group> groups_;
  std::set<uint32_t> heard_;
  size_t bytes_ = 0;
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_CORE_STACK_GROUPS_H_
