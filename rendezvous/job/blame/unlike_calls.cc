#include "rendezvous/job/blame/unlike_calls.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace cadre::job {
namespace {

using Ranks = std::vector<v1::RankEvidence>;
using Indices = std::vector<size_t>;

// One group as its members have it, by their index; of those that answered.
using Members = std::map<size_t, const v1::ProcessGroupCalls*>;

// The smallest first: where ranks wait for each other in two of them, the larger one is what most
// programs end a step with, and what was left out was in the smaller.
std::vector<Members> GroupsOf(const Ranks& ranks) {
  std::map<std::string, Members> by_name;
  for (size_t i = 0; i < ranks.size(); ++i) {
    for (const v1::ProcessGroupCalls& group : ranks[i].calls()) by_name[group.group()][i] = &group;
  }
  std::vector<Members> groups;
  for (auto& [name, members] : by_name) groups.push_back(std::move(members));
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Members& a, const Members& b) { return a.size() < b.size(); });
  return groups;
}

// "process group default_pg", "process group 3 (ranks 0, 2)".
std::string NameOf(const v1::ProcessGroupCalls& group) {
  return absl::StrCat("process group ", group.description());
}

std::string With(const std::string& shape) {
  return shape.empty() ? "" : absl::StrCat(" with ", shape);
}

using Signature = std::pair<std::string, std::string>;

// The ranks that made a call, by its name and shape.
using Made = std::map<Signature, Indices>;

UnlikeCall Unlike(const Ranks& ranks, const v1::ProcessGroupCalls& group, uint64_t number,
                  const Made& made) {
  const auto fewer = [](const auto& a, const auto& b) {
    return std::make_pair(a.second.size(), b.second.back()) <
           std::make_pair(b.second.size(), a.second.back());
  };
  const auto odd = std::min_element(made.begin(), made.end(), fewer);
  const auto most = std::max_element(made.begin(), made.end(), fewer);
  const size_t index = odd->second.back();
  const size_t other = most->second.front();
  const bool same_name = odd->first.first == most->first.first;
  return {index, other,
          absl::StrCat("it called ", odd->first.first, With(odd->first.second), " as number ",
                       number, " of ", NameOf(group), ", and rank ", ranks[other].rank(),
                       same_name ? "" : absl::StrCat(" ", most->first.first),
                       With(most->first.second), ": they do not make the same calls")};
}

// The first call that has not ended; nullptr: all have.
const v1::CollectiveCall* PendingOf(const v1::ProcessGroupCalls& group) {
  const auto found = std::find_if(group.calls().begin(), group.calls().end(),
                                  [](const v1::CollectiveCall& call) { return call.pending(); });
  return found == group.calls().end() ? nullptr : &*found;
}

}  // namespace

std::optional<UnlikeCall> WhoCalledSomethingElse(const Ranks& ranks) {
  for (const Members& members : GroupsOf(ranks)) {
    std::map<uint64_t, Made> calls;
    for (const auto& [index, group] : members) {
      for (const v1::CollectiveCall& call : group->calls()) {
        calls[call.number()][{call.name(), call.shape()}].push_back(index);
      }
    }
    for (const auto& [number, made] : calls) {
      if (made.size() > 1) return Unlike(ranks, *members.begin()->second, number, made);
    }
  }
  return std::nullopt;
}

std::optional<UnlikeCall> WhoHasNotCalled(const Ranks& ranks) {
  for (const Members& members : GroupsOf(ranks)) {
    const auto last = [](const auto& a, const auto& b) {
      return a.second->last() < b.second->last();
    };
    const auto behind = std::min_element(members.begin(), members.end(), last);
    const uint64_t next = behind->second->last() + 1;
    Indices waiting;
    std::string call;
    for (const auto& [index, group] : members) {
      const v1::CollectiveCall* const pending = PendingOf(*group);
      if (pending == nullptr || pending->number() != next) continue;
      waiting.push_back(index);
      call = pending->name();
    }
    if (waiting.empty()) continue;
    return UnlikeCall{
        behind->first, waiting.front(),
        absl::StrCat("it has not called ", call, ", number ", next, " of ", NameOf(*behind->second),
                     ", in which ", Count(waiting.size(), "rank"),
                     waiting.size() == 1 ? " waits" : " wait")};
  }
  return std::nullopt;
}

}  // namespace cadre::job
