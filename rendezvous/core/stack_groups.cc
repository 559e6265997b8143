#include "rendezvous/core/stack_groups.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/job/report.h"

namespace cadre {
namespace {

constexpr size_t kMaxNameBytes = 256;

// Without what must not reach a terminal, and no longer than it may be.
v1::RankStack Clean(const v1::RankStack& said, const saved::Member& member) {
  v1::RankStack stack;
  *stack.mutable_evidence() = job::CleanEvidence(said.evidence(), member);
  stack.mutable_evidence()->clear_last_lines();
  stack.mutable_evidence()->clear_calls();
  stack.mutable_evidence()->clear_file();
  stack.set_cut(said.cut() || said.frames_size() > kMaxGroupedFrames);
  for (const v1::StackFrame& frame : said.frames()) {
    if (stack.frames_size() == kMaxGroupedFrames) break;
    v1::StackFrame* clean = stack.add_frames();
    clean->set_file(OneLine(frame.file(), kMaxNameBytes));
    clean->set_line(frame.line());
    clean->set_function(OneLine(frame.function(), kMaxNameBytes));
    clean->set_own(frame.own());
    clean->set_source(OneLine(frame.source(), kMaxNameBytes));
  }
  stack.set_no_python(OneLine(said.no_python(), kMaxNameBytes));
  stack.set_text(Shortened(said.text(), kMaxGroupedTextBytes));
  return stack;
}

// A running process and one that sleeps for a moment are alike; one that is stopped, waits for a
// device, or is gone is not.
std::string StateKey(const std::string& state) { return state == "R" ? "S" : state; }

std::string KeyOf(const v1::RankStack& stack) {
  const v1::RankEvidence& evidence = stack.evidence();
  std::string key = absl::StrCat(evidence.python(), "\n", evidence.python_what(), "\n",
                                 evidence.python_where(), "\n", stack.no_python(), "\n");
  for (const v1::StackFrame& frame : stack.frames()) {
    absl::StrAppend(&key, frame.file(), ":", frame.line(), ":", frame.function(), "\n");
  }
  if (stack.frames_size() > 0) return key;
  return absl::StrCat(key, StateKey(evidence.state()), "\n", evidence.wchan(), "\n",
                      evidence.phase(), "\n", evidence.bucket());
}

v1::RankStack LeftOut(const v1::RankStack& stack) {
  v1::RankStack left;
  left.mutable_evidence()->set_rank(stack.evidence().rank());
  left.mutable_evidence()->set_local_rank(stack.evidence().local_rank());
  left.mutable_evidence()->set_node(stack.evidence().node());
  left.mutable_evidence()->set_pid(stack.evidence().pid());
  left.set_no_python("left out: too many different stacks for one answer; ask for a rank alone");
  return left;
}

}  // namespace

void StackGroups::Add(const saved::Member& member, const v1::RankStack& said) {
  const int64_t local_rank = said.evidence().local_rank();
  if (local_rank < 0 || local_rank >= member.slots()) return;
  const auto rank = static_cast<uint32_t>(member.first_rank() + local_rank);
  if (!heard_.insert(rank).second) return;
  v1::RankStack stack = Clean(said, member);
  std::string key = KeyOf(stack);
  if (groups_.count(key) == 0 && bytes_ + stack.ByteSizeLong() > kMaxStackGroupsBytes) {
    stack = LeftOut(stack);
    key = KeyOf(stack);
  }
  Group& group = groups_[key];
  if (group.ranks.empty()) bytes_ += stack.ByteSizeLong();
  if (group.ranks.empty() || rank < *group.ranks.begin()) group.first = std::move(stack);
  group.ranks.insert(rank);
}

google::protobuf::RepeatedPtrField<v1::StackGroup> StackGroups::Take() {
  std::vector<Group> sorted;
  for (auto& [key, group] : groups_) sorted.push_back(std::move(group));
  groups_.clear();
  std::sort(sorted.begin(), sorted.end(), [](const Group& a, const Group& b) {
    if (a.ranks.size() != b.ranks.size()) return a.ranks.size() > b.ranks.size();
    return *a.ranks.begin() < *b.ranks.begin();
  });
  google::protobuf::RepeatedPtrField<v1::StackGroup> groups;
  for (Group& group : sorted) {
    v1::StackGroup* said = groups.Add();
    said->mutable_ranks()->Add(group.ranks.begin(), group.ranks.end());
    *said->mutable_first() = std::move(group.first);
  }
  return groups;
}

}  // namespace cadre
