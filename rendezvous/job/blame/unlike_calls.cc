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
  return {index,
          other,
          absl::StrCat("it called ", odd->first.first, With(odd->first.second), " as number ",
                       number, " of ", NameOf(group), ", and rank ", ranks[other].rank(),
                       same_name ? "" : absl::StrCat(" ", most->first.first),
                       With(most->first.second), ": they do not make the same calls"),
          {odd->second.begin(), odd->second.end() - 1}};
}

// The first call that has not ended; nullptr: all have.
const v1::CollectiveCall* PendingOf(const v1::ProcessGroupCalls& group) {
  const auto found = std::find_if(group.calls().begin(), group.calls().end(),
                                  [](const v1::CollectiveCall& call) { return call.pending(); });
  return found == group.calls().end() ? nullptr : &*found;
}

// The rank has called the other end of the message. One of which the other end is not known, -1,
// meets any.
bool IsMet(const v1::RankEvidence& rank, const std::string& group_name,
           const v1::CollectiveCall& message) {
  for (const v1::ProcessGroupCalls& group : rank.calls()) {
    if (group.group() != group_name) continue;
    for (const v1::CollectiveCall& own : group.messages()) {
      const bool same_from = own.from() == message.from() || own.from() < 0;
      if (same_from && own.to() == message.to()) return true;
    }
  }
  return false;
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
    const v1::CollectiveCall* first = nullptr;  // of the calls in which a rank waits
    for (const auto& [index, group] : members) {
      const v1::CollectiveCall* const pending = PendingOf(*group);
      if (pending == nullptr) continue;
      if (first == nullptr || pending->number() < first->number()) first = pending;
    }
    if (first == nullptr) continue;
    // What a rank has called before may not be told: what it has called is not above `last`.
    Indices waiting, behind;
    for (const auto& [index, group] : members) {
      const v1::CollectiveCall* const pending = PendingOf(*group);
      if (pending != nullptr && pending->number() == first->number()) waiting.push_back(index);
      if (group->last() < first->number()) behind.push_back(index);
    }
    if (behind.empty()) continue;
    const v1::ProcessGroupCalls& group = *members.at(waiting.front());
    return UnlikeCall{
        behind.front(),
        waiting.front(),
        absl::StrCat("it has not called ", first->name(), ", number ", first->number(), " of ",
                     NameOf(group), ", in which ", Count(waiting.size(), "rank"),
                     waiting.size() == 1 ? " waits" : " wait"),
        {behind.begin() + 1, behind.end()}};
  }
  return std::nullopt;
}

std::optional<UnlikeCall> WhoHasNotMetAMessage(const Ranks& ranks) {
  std::map<int32_t, size_t> index_of;  // of those who tell what they call
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!ranks[i].calls().empty()) index_of[ranks[i].rank()] = i;
  }
  // By index, the first of its messages that the other rank does not meet.
  struct Unmet {
    size_t by = 0;
    std::string why;
  };
  std::map<size_t, Unmet> unmet;
  for (const auto& [rank, index] : index_of) {
    for (const v1::ProcessGroupCalls& group : ranks[index].calls()) {
      for (const v1::CollectiveCall& message : group.messages()) {
        const bool sends = message.from() == rank;
        const auto peer = index_of.find(sends ? message.to() : message.from());
        if (peer == index_of.end() || IsMet(ranks[peer->second], group.group(), message)) continue;
        unmet.insert({index,
                      {peer->second, absl::StrCat("it has not called ", sends ? "recv" : "send",
                                                  " in ", NameOf(group), ", for which rank ", rank,
                                                  " waits in ", sends ? "send" : "recv")}});
      }
    }
  }
  if (unmet.empty()) return std::nullopt;
  // Along those who wait for each other to one who waits for nobody, or round once.
  size_t waits = unmet.begin()->first;
  for (size_t steps = 0; steps < unmet.size() && unmet.count(unmet.at(waits).by) != 0; ++steps) {
    waits = unmet.at(waits).by;
  }
  return UnlikeCall{unmet.at(waits).by, waits, unmet.at(waits).why};
}

std::optional<UnlikeCall> WhoIsSilent(const Ranks& ranks) {
  std::map<int32_t, size_t> silent;  // those who run and tell nothing
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].calls().empty() && !ranks[i].state().empty()) silent[ranks[i].rank()] = i;
  }
  if (silent.empty()) return std::nullopt;
  for (const Members& members : GroupsOf(ranks)) {
    for (const auto& [index, group] : members) {
      const v1::CollectiveCall* const pending = PendingOf(*group);
      if (pending == nullptr) continue;
      Indices suspects;
      for (const int32_t member : group->ranks()) {
        const auto found = silent.find(member);
        if (found != silent.end()) suspects.push_back(found->second);
      }
      if (suspects.empty()) continue;
      return UnlikeCall{suspects.front(),
                        index,
                        absl::StrCat("it does not tell what it called, and rank ",
                                     ranks[index].rank(), " waits in ", pending->name(),
                                     ", number ", pending->number(), " of ", NameOf(*group)),
                        {suspects.begin() + 1, suspects.end()}};
    }
  }
  return std::nullopt;
}

}  // namespace cadre::job
