// Chooses the nodes to ask for stacks, and groups the ranks in their answers that are alike.
#include "rendezvous/core/stacks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/job/failure.h"
#include "rendezvous/state/state_limits.h"
#include "rpc/job_progress.h"

namespace cadre {
namespace {

StackSources::Node SourceOf(const saved::Member& member, const job::NodeConnection* connection) {
  if (connection == nullptr || !connection->stream.has_value()) {
    return {member, std::nullopt, member.lost() ? "was lost" : "is not connected now"};
  }
  return {member, connection->stream, ""};
}

}  // namespace

absl::StatusOr<StackSources> FindStacks(const v1::GetStacksRequest& request,
                                        const state::State& state, const job::Jobs& jobs) {
  const std::string name = OneLine(request.job(), state::kMaxJobNameBytes);
  const auto found = state.jobs.find(request.job());
  const job::Job* job = jobs.Find(request.job());
  if (found == state.jobs.end() || job == nullptr) {
    return absl::NotFoundError(absl::StrCat("no job ", name));
  }
  const state::Job& saved = found->second;
  if (saved.phase() != v1::RUNNING && saved.phase() != v1::STOPPING) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", name, state::HasEnded(saved.phase()) ? " has ended (" : " is ",
                     rpc::PhaseName(saved.phase()), state::HasEnded(saved.phase()) ? ")" : "",
                     ": none of its workers runs; 'cadre why ", name, "' says more"));
  }
  const state::Generation& generation = saved.generation;
  const v1::StackQuestion& question = request.question();
  if (question.one_rank() && question.rank() >= generation.world_size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", name, " has no rank ", question.rank(), "; generation ",
                     generation.number(), " has ", Count(generation.world_size(), "worker")));
  }
  StackSources sources;
  sources.job = found->first;
  sources.generation = generation.number();
  sources.world_size = generation.world_size();
  for (const saved::Member& member : generation.saved.members()) {
    const uint32_t first = member.first_rank();
    if (question.one_rank() &&
        (question.rank() < first || question.rank() >= first + member.slots())) {
      continue;
    }
    sources.nodes.push_back(
        SourceOf(member, job->view().volatile_state.connections.Find(member.node())));
  }
  return sources;
}

namespace {

constexpr size_t kMaxNameBytes = 256;

// Returns the stack without what must not reach a terminal, cut to its limits.
v1::RankStack Clean(const v1::RankStack& reported, const saved::Member& member) {
  v1::RankStack stack;
  *stack.mutable_evidence() = job::CleanEvidence(reported.evidence(), member);
  stack.mutable_evidence()->clear_last_lines();
  stack.mutable_evidence()->clear_calls();
  stack.mutable_evidence()->clear_file();
  stack.set_cut(reported.cut() || reported.frames_size() > kMaxGroupedFrames);
  for (const v1::StackFrame& frame : reported.frames()) {
    if (stack.frames_size() == kMaxGroupedFrames) break;
    v1::StackFrame* clean = stack.add_frames();
    clean->set_file(OneLine(frame.file(), kMaxNameBytes));
    clean->set_line(frame.line());
    clean->set_function(OneLine(frame.function(), kMaxNameBytes));
    clean->set_own(frame.own());
    clean->set_source(OneLine(frame.source(), kMaxNameBytes));
  }
  stack.set_no_python(OneLine(reported.no_python(), kMaxNameBytes));
  stack.set_text(Shortened(reported.text(), kMaxGroupedTextBytes));
  return stack;
}

// Running and sleeping count as the same state, since a process may sleep for a moment. Being
// stopped, waiting for a device and being gone are states of their own.
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

void StackGroups::Add(const saved::Member& member, const v1::RankStack& reported) {
  const int64_t local_rank = reported.evidence().local_rank();
  if (local_rank < 0 || local_rank >= member.slots()) return;
  const auto rank = static_cast<uint32_t>(member.first_rank() + local_rank);
  if (!added_.insert(rank).second) return;
  v1::RankStack stack = Clean(reported, member);
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
    v1::StackGroup* reported = groups.Add();
    reported->mutable_ranks()->Add(group.ranks.begin(), group.ranks.end());
    *reported->mutable_first() = std::move(group.first);
  }
  return groups;
}

}  // namespace cadre
