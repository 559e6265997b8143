// Finds which rank is to blame for a failure or a hang: by what the ranks do, by the calls they
// made, or because it ended too early.
#include "rendezvous/job/culprit.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "rendezvous/job/failure.h"
#include "rpc/worker_end.h"

namespace cadre::job {
namespace {

using Ranks = std::vector<v1::RankEvidence>;
using Indices = std::vector<size_t>;

// The share of one core from which a rank is busy; less is a program that sleeps and wakes.
constexpr double kBusy = 0.5;
// The length of a line of a user's program.
constexpr size_t kMaxLineBytes = 120;

bool IsBusy(const v1::RankEvidence& rank) { return rank.cpu() >= kBusy; }
bool IsStopped(const v1::RankEvidence& rank) { return rank.state() == "T" || rank.state() == "t"; }
bool HasPage(const v1::RankEvidence& rank) { return rank.phase() != v1::RANK_PHASE_UNSPECIFIED; }

std::string Seconds(double seconds) { return absl::StrFormat("%.1f s", seconds); }

// Returns what the rank's processes do.
std::string Activity(const v1::RankEvidence& rank) {
  if (rank.state().empty()) return "its process is gone";
  if (IsStopped(rank)) return absl::StrCat("it is stopped (state ", rank.state(), ")");
  if (IsBusy(rank)) {
    // NCCL and shared memory poll while they wait for other ranks. Whether any other rank loops or
    // computes cannot be seen in one probe.
    const bool waits = rank.phase() == v1::WAITING || rank.python() == v1::IN_COLLECTIVE;
    return absl::StrFormat("it uses %.1f cores%s", rank.cpu(), waits ? " to wait" : "");
  }
  const std::string where = rank.wchan().empty() ? "" : absl::StrCat(" in ", rank.wchan());
  if (rank.state() == "D") return absl::StrCat("it sleeps uninterruptibly", where);
  return absl::StrCat("it sleeps", where);
}

// Returns where the rank's Python program is; empty if unknown.
std::string PythonLine(const v1::RankEvidence& rank) {
  const std::string what = OneLine(rank.python_what(), kMaxLineBytes);
  if (rank.python_where().empty()) return what;
  const std::string where = OneLine(rank.python_where(), kMaxLineBytes);
  return absl::StrCat(what.empty() ? "a line of its own" : what, " (", where, ")");
}

// Returns what the rank's Python program does.
std::string PythonText(const v1::RankEvidence& rank) {
  const std::string line = PythonLine(rank);
  switch (rank.python()) {
    case v1::IN_COLLECTIVE:
      return absl::StrCat("waits in ", line);
    case v1::IN_DATA_LOADER:
      return absl::StrCat("is in its data loader", line.empty() ? "" : ": ", line);
    default:
      return absl::StrCat("is at ", line.empty() ? "a line of its own" : line);
  }
}

std::string Place(const v1::RankEvidence& rank) {
  switch (rank.phase()) {
    case v1::STARTING:
      return "before its first step";
    case v1::FORWARD:
      return absl::StrCat("in the forward pass of step ", rank.step());
    case v1::BACKWARD:
      return absl::StrCat("in the backward pass of step ", rank.step());
    case v1::WAITING:
      return absl::StrCat("waiting for bucket ", rank.bucket(), " of step ", rank.step());
    case v1::BETWEEN:
      return absl::StrCat("after step ", rank.step());
    case v1::RUNTIME_FAILED:
      return absl::StrCat("past an error in step ", rank.step());
    default:
      break;
  }
  const std::string line = PythonLine(rank);
  // Where a rank waits for others tells nothing of the rank itself.
  if (!line.empty() && rank.python() != v1::IN_COLLECTIVE) return absl::StrCat("at ", line);
  // Silence may be counted from output, for a worker that never reported a step.
  return rank.step() > 0 ? absl::StrCat("after its report of step ", rank.step())
                         : "at a place that it has not reported";
}

std::string PlaceSince(const v1::RankEvidence& rank) {
  return HasPage(rank) ? absl::StrCat(Place(rank), " since ", Seconds(rank.phase_seconds()))
                       : Place(rank);
}

Indices Where(const Ranks& ranks, const std::function<bool(const v1::RankEvidence&)>& holds) {
  Indices found;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (holds(ranks[i])) found.push_back(i);
  }
  return found;
}

// Returns an overdue rank of these, the longest silent; the lowest rank among equals.
size_t LongestSilent(const Ranks& ranks, const Indices& among) {
  return *std::max_element(among.begin(), among.end(), [&](size_t a, size_t b) {
    return std::make_tuple(ranks[a].overdue(), ranks[a].silent_seconds(), -ranks[a].rank()) <
           std::make_tuple(ranks[b].overdue(), ranks[b].silent_seconds(), -ranks[b].rank());
  });
}

// Returns all of these but one.
Indices Without(const Indices& among, size_t one) {
  Indices others;
  std::copy_if(among.begin(), among.end(), std::back_inserter(others),
               [one](size_t i) { return i != one; });
  return others;
}

size_t FurthestBehind(const Ranks& ranks, const Indices& among) {
  return *std::min_element(among.begin(), among.end(), [&](size_t a, size_t b) {
    return std::make_tuple(ranks[a].step(), -ranks[a].phase_seconds(), ranks[a].rank()) <
           std::make_tuple(ranks[b].step(), -ranks[b].phase_seconds(), ranks[b].rank());
  });
}

// By progress pages: some wait in a collective that others have not reached.
std::optional<Culprit> WhoIsWaitedFor(const Ranks& ranks) {
  const Indices waiting =
      Where(ranks, [](const auto& rank) { return rank.phase() == v1::WAITING; });
  if (waiting.empty()) return std::nullopt;
  const v1::RankEvidence& first = ranks[FurthestBehind(ranks, waiting)];
  const std::string what = absl::StrCat("bucket ", first.bucket(), " of step ", first.step());
  Indices absent = Where(ranks, [&](const auto& rank) {
    return HasPage(rank) && rank.phase() != v1::WAITING && rank.step() <= first.step();
  });
  // A rank without a progress page is suspected after those whose pages show that they are
  // elsewhere.
  if (absent.empty()) absent = Where(ranks, [](const auto& rank) { return !HasPage(rank); });
  if (absent.empty()) return std::nullopt;
  const size_t index = FurthestBehind(ranks, absent);
  return Culprit{
      index,
      absl::StrCat("it has not reached ", what, ", for which ", Count(waiting.size(), "rank"),
                   waiting.size() == 1 ? " waits; it is " : " wait; it is ",
                   PlaceSince(ranks[index]), "; ", Activity(ranks[index])),
      Without(absent, index)};
}

// By progress pages: all wait, but not in the same collective.
std::optional<Culprit> WhoWaitsElsewhere(const Ranks& ranks) {
  std::map<std::tuple<uint64_t, int32_t, uint64_t>, Indices> groups;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].phase() != v1::WAITING) return std::nullopt;
    groups[{ranks[i].step(), ranks[i].bucket(), ranks[i].collective()}].push_back(i);
  }
  const auto& [place, everybody] = *groups.begin();
  if (groups.size() == 1) {
    const size_t index = LongestSilent(ranks, everybody);
    return Culprit{
        index, absl::StrCat(ranks.size() == 1 ? "it waits" : "all ranks wait", " for bucket ",
                            std::get<1>(place), " of step ", std::get<0>(place),
                            ": the exchange between them stands still; ", Activity(ranks[index]))};
  }
  // The smallest group; among equals the one furthest behind, which comes first.
  const auto odd = std::min_element(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  });
  const auto other = std::find_if(groups.begin(), groups.end(),
                                  [&](const auto& group) { return group.first != odd->first; });
  const v1::RankEvidence& mate = ranks[other->second.front()];
  const size_t index = odd->second.front();
  return Culprit{
      index,
      absl::StrCat("it is ", PlaceSince(ranks[index]), " (all-reduce ", ranks[index].collective(),
                   ") while rank ", mate.rank(), " is ", Place(mate), " (all-reduce ",
                   mate.collective(), "): they do not make the same calls"),
      Without(odd->second, index)};
}

// By Python stacks: most wait in a collective that some have not entered.
std::optional<Culprit> WhoIsOutsideTheCollective(const Ranks& ranks) {
  // A rank that still imports is only late, as in the first start of a program.
  if (!Where(ranks, [](const auto& rank) { return rank.python() == v1::IMPORTING; }).empty()) {
    return std::nullopt;
  }
  const Indices waiting =
      Where(ranks, [](const auto& rank) { return rank.python() == v1::IN_COLLECTIVE; });
  const Indices outside = Where(ranks, [](const auto& rank) {
    return rank.python() == v1::IN_OWN_CODE || rank.python() == v1::IN_DATA_LOADER;
  });
  if (waiting.empty() || outside.empty()) return std::nullopt;
  const size_t index = LongestSilent(ranks, outside);
  const v1::RankEvidence& first = ranks[waiting.front()];
  std::string why = absl::StrCat("it ", PythonText(ranks[index]), " while rank ", first.rank(), " ",
                                 PythonText(first));
  if (waiting.size() > 1) {
    absl::StrAppend(&why, ", as ", Count(waiting.size() - 1, "other"),
                    waiting.size() == 2 ? " does" : " do");
  }
  return Culprit{index, absl::StrCat(why, "; ", Activity(ranks[index])), Without(outside, index)};
}

// By Python stacks: all wait, but not in the same collective.
std::optional<Culprit> WhoIsInAnotherCollective(const Ranks& ranks) {
  std::map<std::pair<std::string, std::string>, Indices> groups;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].python() != v1::IN_COLLECTIVE) return std::nullopt;
    groups[{ranks[i].python_what(), ranks[i].python_where()}].push_back(i);
  }
  if (groups.size() < 2) return std::nullopt;
  const auto fewer = [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); };
  const Indices& fewest = std::min_element(groups.begin(), groups.end(), fewer)->second;
  const size_t index = fewest.front();
  const Indices& most = std::max_element(groups.begin(), groups.end(), fewer)->second;
  // If all groups are equal, the last is the other one.
  const size_t mate = most.front() != index ? most.front() : groups.rbegin()->second.front();
  return Culprit{index,
                 absl::StrCat("it ", PythonText(ranks[index]), " while rank ", ranks[mate].rank(),
                              " ", PythonText(ranks[mate]), ": they do not make the same calls"),
                 Without(fewest, index)};
}

// NCCL records a call once the group has a communicator, which the group's first call forms.
bool FormsItsCommunicator(const v1::RankEvidence& rank) {
  if (rank.python() != v1::IN_COLLECTIVE || rank.calls().empty()) return false;
  for (const v1::ProcessGroupCalls& group : rank.calls()) {
    for (const v1::CollectiveCall& call : group.calls()) {
      if (call.pending()) return false;
    }
  }
  return true;
}

// Adds where the two ranks are now to what PyTorch's flight recorder shows.
std::optional<Culprit> ByCalls(const Ranks& ranks, const std::optional<MismatchedCall>& unlike) {
  if (!unlike.has_value()) return std::nullopt;
  const v1::RankEvidence& rank = ranks[unlike->index];
  const v1::RankEvidence& other = ranks[unlike->other];
  std::string why = unlike->why;
  if (rank.python() != v1::PYTHON_ACTIVITY_UNSPECIFIED && unlike->other != unlike->index) {
    absl::StrAppend(&why, "; it ", PythonText(rank), " while rank ", other.rank(), " ",
                    PythonText(other));
  }
  if (FormsItsCommunicator(rank)) {
    absl::StrAppend(&why,
                    "; its own call has not begun: the communicator of that group is still "
                    "being formed, for which another rank is missing");
  }
  return Culprit{unlike->index, absl::StrCat(why, "; ", Activity(rank)), unlike->others};
}

std::optional<Culprit> WhoMadeAnotherCall(const Ranks& ranks) {
  return ByCalls(ranks, WhoCalledSomethingElse(ranks));
}

std::optional<Culprit> WhoIsACallBehind(const Ranks& ranks) {
  return ByCalls(ranks, WhoHasNotCalled(ranks));
}

std::optional<Culprit> WhoDoesNotMeetAMessage(const Ranks& ranks) {
  return ByCalls(ranks, WhoHasNotMetAMessage(ranks));
}

// A rank that reports no calls may be in none, and is suspected before one that waits.
std::optional<Culprit> WhoTellsNothing(const Ranks& ranks) {
  return ByCalls(ranks, WhoIsSilent(ranks));
}

// By Python stacks all wait in the same place. A rank whose tensor has another shape, or that left
// out an earlier call, may be there too.
std::optional<Culprit> NobodyStandsOut(const Ranks& ranks) {
  if (ranks.size() < 2) return std::nullopt;
  const Indices same = Where(ranks, [&](const auto& rank) {
    return rank.python() == v1::IN_COLLECTIVE && rank.python_what() == ranks[0].python_what() &&
           rank.python_where() == ranks[0].python_where();
  });
  if (same.size() != ranks.size()) return std::nullopt;
  const size_t index = LongestSilent(ranks, same);
  return Culprit{
      index, absl::StrCat("it ", PythonText(ranks[index]), ", as all others do, and ",
                          "nothing tells them apart; if one of them calls it with ",
                          "another shape or type, TORCH_DISTRIBUTED_DEBUG=DETAIL says ", "which")};
}

std::optional<Culprit> WhoIsBehind(const Ranks& ranks, const Indices& known) {
  if (known.empty()) return std::nullopt;
  const size_t slowest = FurthestBehind(ranks, known);
  const auto ahead = std::max_element(known.begin(), known.end(), [&](size_t a, size_t b) {
    return ranks[a].step() < ranks[b].step();
  });
  if (ranks[*ahead].step() == ranks[slowest].step()) return std::nullopt;
  return Culprit{slowest, absl::StrCat("it is ", PlaceSince(ranks[slowest]), " while rank ",
                                       ranks[*ahead].rank(), " is ", Place(ranks[*ahead]), "; ",
                                       Activity(ranks[slowest]))};
}

std::optional<Culprit> WhoIsBehindByPage(const Ranks& ranks) {
  return WhoIsBehind(ranks, Where(ranks, HasPage));
}

// Agents pass reports on only from time to time, so steps may be somewhat old.
std::optional<Culprit> WhoIsBehindByReport(const Ranks& ranks) {
  return WhoIsBehind(ranks,
                     Where(ranks, [](const auto& rank) { return rank.silent_seconds() >= 0; }));
}

std::optional<Culprit> WhoDiffersInCpu(const Ranks& ranks) {
  const Indices busy = Where(ranks, IsBusy);
  const Indices idle = Where(ranks, [](const auto& rank) { return !IsBusy(rank); });
  if (busy.empty() || idle.empty()) return std::nullopt;
  const Indices& odd = busy.size() <= idle.size() ? busy : idle;
  const size_t index = LongestSilent(ranks, odd);
  const size_t others = ranks.size() - odd.size();
  return Culprit{index, absl::StrCat(Activity(ranks[index]), " (", Count(others, "other"),
                                     IsBusy(ranks[index]) ? " asleep)" : " busy)", "; it is ",
                                     PlaceSince(ranks[index]))};
}

bool Waits(const v1::RankEvidence& rank) {
  return !IsStopped(rank) && (rank.phase() == v1::WAITING || rank.python() == v1::IN_COLLECTIVE);
}

// Returns "at hang.py:7" or "in the forward pass of step 20"; for a stopped rank, that it is
// stopped.
std::string ShortPlace(const v1::RankEvidence& rank) {
  if (IsStopped(rank)) return absl::StrCat("is stopped (state ", rank.state(), ")");
  if (HasPage(rank)) return Place(rank);
  const std::string& where = rank.python_where();
  if (where.empty()) return Activity(rank).substr(sizeof("it ") - 1);
  return absl::StrCat("at ", OneLine(where.substr(0, where.find(" in ")), kMaxLineBytes),
                      rank.python() == v1::IN_DATA_LOADER ? " in its data loader" : "");
}

// Returns what all of these wait in, if it is the same: " in all_reduce", " in bucket 0 of step
// 20".
std::string WaitsIn(const Ranks& ranks, const Indices& waiting) {
  const v1::RankEvidence& first = ranks[waiting.front()];
  const bool by_page = first.phase() == v1::WAITING;
  const auto is_same = [&](size_t i) {
    return by_page ? ranks[i].step() == first.step() && ranks[i].bucket() == first.bucket()
                   : ranks[i].python_what() == first.python_what();
  };
  if (!std::all_of(waiting.begin(), waiting.end(), is_same)) return "";
  if (by_page) return absl::StrCat(" in bucket ", first.bucket(), " of step ", first.step());
  const std::string what = OneLine(first.python_what(), kMaxLineBytes);
  return what.empty() ? "" : absl::StrCat(" in ", what);
}

}  // namespace

std::string StandstillText(const Ranks& ranks) {
  const Culprit culprit = PickCulprit(ranks);
  const v1::RankEvidence& rank = ranks[culprit.index];
  const Indices waiting = Where(ranks, Waits);
  if (Waits(rank) || waiting.empty()) {
    absl::string_view why = culprit.why;
    return absl::ConsumePrefix(&why, "it ") ? absl::StrCat("rank ", rank.rank(), " ", why)
                                            : absl::StrCat("rank ", rank.rank(), ": ", why);
  }
  const size_t more = culprit.others.size();
  return absl::StrCat("rank ", rank.rank(), " ", ShortPlace(rank),
                      more == 0 ? "" : absl::StrCat(" and ", Count(more, "other")), ", ",
                      Count(waiting.size(), "rank"), waiting.size() == 1 ? " waits" : " wait",
                      more == 0 ? " for it" : " for them", WaitsIn(ranks, waiting));
}

std::optional<Culprit> WhoIsAbsent(const Ranks& ranks) {
  const Indices absent = Where(ranks, [](const auto& rank) { return rank.absent(); });
  if (absent.empty()) return std::nullopt;
  const size_t more = absent.size() - 1;
  const std::string nor =
      more == 0 ? ""
                : absl::StrCat(more == 1 ? "nor has " : "nor have ", Count(more, "other"), "; ");
  return Culprit{absent.front(),
                 absl::StrCat("it was restarted, the others wait for it, and it has not rejoined; ",
                              nor, Activity(ranks[absent.front()]))};
}

Culprit PickCulprit(const Ranks& ranks) {
  const Indices stopped = Where(ranks, IsStopped);
  if (!stopped.empty()) {
    const size_t index = LongestSilent(ranks, stopped);
    return {index,
            absl::StrCat(Activity(ranks[index]), " by a signal or a debugger, ",
                         PlaceSince(ranks[index])),
            Without(stopped, index)};
  }
  for (const auto rule :
       {WhoIsWaitedFor, WhoWaitsElsewhere, WhoIsBehindByPage, WhoMadeAnotherCall,
        WhoIsOutsideTheCollective, WhoIsACallBehind, WhoDoesNotMeetAMessage, WhoTellsNothing,
        WhoIsInAnotherCollective, WhoDiffersInCpu, WhoIsBehindByReport, NobodyStandsOut}) {
    const std::optional<Culprit> culprit = rule(ranks);
    if (culprit.has_value()) return *culprit;
  }
  Indices all(ranks.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  const size_t index = LongestSilent(ranks, all);
  return {index, absl::StrCat(Activity(ranks[index]), ", ", PlaceSince(ranks[index]))};
}

namespace {

// The calls of one group as reported by its members, by the index of the rank.
using Members = std::map<size_t, const v1::ProcessGroupCalls*>;

// Returns the groups, the smallest first: if ranks wait for each other in two of them, the larger
// one is what most programs end a step with, and the omitted call was in the smaller.
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

// Returns "process group default_pg" or "process group 3 (ranks 0, 2)".
std::string NameOf(const v1::ProcessGroupCalls& group) {
  return absl::StrCat("process group ", group.description());
}

std::string With(const std::string& shape) {
  return shape.empty() ? "" : absl::StrCat(" with ", shape);
}

using Signature = std::pair<std::string, std::string>;

// The ranks that made a call, by the call's name and shape.
using Made = std::map<Signature, Indices>;

MismatchedCall Unlike(const Ranks& ranks, const v1::ProcessGroupCalls& group, uint64_t number,
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

// Returns the first call that has not ended; nullptr if all have.
const v1::CollectiveCall* PendingOf(const v1::ProcessGroupCalls& group) {
  const auto found = std::find_if(group.calls().begin(), group.calls().end(),
                                  [](const v1::CollectiveCall& call) { return call.pending(); });
  return found == group.calls().end() ? nullptr : &*found;
}

// Whether the rank has called the other end of the message. A call whose other end is unknown, -1,
// matches any.
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

std::optional<MismatchedCall> WhoCalledSomethingElse(const Ranks& ranks) {
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

std::optional<MismatchedCall> WhoHasNotCalled(const Ranks& ranks) {
  for (const Members& members : GroupsOf(ranks)) {
    const v1::CollectiveCall* first = nullptr;  // the first call in which a rank waits
    for (const auto& [index, group] : members) {
      const v1::CollectiveCall* const pending = PendingOf(*group);
      if (pending == nullptr) continue;
      if (first == nullptr || pending->number() < first->number()) first = pending;
    }
    if (first == nullptr) continue;
    // Earlier calls of a rank may not be reported: `last` is the highest number that it has called.
    Indices waiting, behind;
    for (const auto& [index, group] : members) {
      const v1::CollectiveCall* const pending = PendingOf(*group);
      if (pending != nullptr && pending->number() == first->number()) waiting.push_back(index);
      if (group->last() < first->number()) behind.push_back(index);
    }
    if (behind.empty()) continue;
    const v1::ProcessGroupCalls& group = *members.at(waiting.front());
    return MismatchedCall{
        behind.front(),
        waiting.front(),
        absl::StrCat("it has not called ", first->name(), ", number ", first->number(), " of ",
                     NameOf(group), ", in which ", Count(waiting.size(), "rank"),
                     waiting.size() == 1 ? " waits" : " wait"),
        {behind.begin() + 1, behind.end()}};
  }
  return std::nullopt;
}

std::optional<MismatchedCall> WhoHasNotMetAMessage(const Ranks& ranks) {
  std::map<int32_t, size_t> index_of;  // of ranks that report their calls
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!ranks[i].calls().empty()) index_of[ranks[i].rank()] = i;
  }
  // By rank index, the rank's first message that the other rank does not meet.
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
  // Follows the waits from rank to rank until one that waits for none, or once round a circle.
  size_t waits = unmet.begin()->first;
  for (size_t steps = 0; steps < unmet.size() && unmet.count(unmet.at(waits).by) != 0; ++steps) {
    waits = unmet.at(waits).by;
  }
  return MismatchedCall{unmet.at(waits).by, waits, unmet.at(waits).why};
}

std::optional<MismatchedCall> WhoIsSilent(const Ranks& ranks) {
  std::map<int32_t, size_t> silent;  // ranks that run and report no calls
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
      return MismatchedCall{suspects.front(),
                            index,
                            absl::StrCat("it does not report what it called, and rank ",
                                         ranks[index].rank(), " waits in ", pending->name(),
                                         ", number ", pending->number(), " of ", NameOf(*group)),
                            {suspects.begin() + 1, suspects.end()}};
    }
  }
  return std::nullopt;
}

namespace {

// Returns "rank 1" or "ranks 0, 2" for ranks in order.
std::string RanksText(const std::vector<uint32_t>& ranks) {
  std::vector<std::string> first;
  for (size_t i = 0; i < std::min(ranks.size(), kFirstFew); ++i) {
    first.push_back(absl::StrCat(ranks[i]));
  }
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", FirstFew(first, ranks.size()));
}

}  // namespace

std::optional<v1::Failure> EarlyEnd(const state::Generation& generation,
                                    const std::vector<v1::Failure>& victims) {
  std::vector<uint32_t> succeeded, lost;
  for (uint32_t rank = 0; rank < generation.world_size(); ++rank) {
    if (generation.worker(rank) == saved::RANK_SUCCEEDED) succeeded.push_back(rank);
  }
  if (succeeded.empty()) return std::nullopt;
  for (const v1::Failure& victim : victims) lost.push_back(victim.rank());
  std::sort(lost.begin(), lost.end());
  const uint32_t rank = succeeded.front();
  const saved::Member& member = generation.member_of(rank);
  const uint32_t local_rank = rank - member.first_rank();
  const bool one = succeeded.size() == 1;
  v1::Failure failure = PlainFailure(
      v1::CRASH, member.node(), generation.number(),
      absl::StrCat(one ? rpc::WorkerName(rank, local_rank, member.node()) : RanksText(succeeded),
                   " ended with exit code 0 in generation ", generation.number(),
                   lost.size() == 1 ? " while another was still working; "
                                    : " while others were still working; ",
                   RanksText(lost), " lost ", one ? "it" : "them"));
  failure.set_rank(static_cast<int32_t>(rank));
  failure.set_local_rank(static_cast<int32_t>(local_rank));
  failure.mutable_exit();
  return failure;
}

}  // namespace cadre::job
