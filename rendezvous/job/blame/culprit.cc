#include "rendezvous/job/blame/culprit.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "rendezvous/job/blame/unlike_calls.h"

namespace cadre::job {
namespace {

using Ranks = std::vector<v1::RankEvidence>;
using Indices = std::vector<size_t>;

// Of one core; less is a program that sleeps and wakes.
constexpr double kBusy = 0.5;
// Of a line of a user's program.
constexpr size_t kMaxLineBytes = 120;

bool IsBusy(const v1::RankEvidence& rank) { return rank.cpu() >= kBusy; }
bool IsStopped(const v1::RankEvidence& rank) { return rank.state() == "T" || rank.state() == "t"; }
bool HasPage(const v1::RankEvidence& rank) { return rank.phase() != v1::RANK_PHASE_UNSPECIFIED; }

std::string Seconds(double seconds) { return absl::StrFormat("%.1f s", seconds); }

// What its processes do.
std::string Activity(const v1::RankEvidence& rank) {
  if (rank.state().empty()) return "its process is gone";
  if (IsStopped(rank)) return absl::StrCat("it is stopped (state ", rank.state(), ")");
  if (IsBusy(rank)) {
    // NCCL, and shared memory, poll for the others. Whether another one loops or computes cannot be
    // seen in one look.
    const bool waits = rank.phase() == v1::WAITING || rank.python() == v1::IN_COLLECTIVE;
    return absl::StrFormat("it uses %.1f cores%s", rank.cpu(), waits ? " to wait" : "");
  }
  const std::string where = rank.wchan().empty() ? "" : absl::StrCat(" in ", rank.wchan());
  if (rank.state() == "D") return absl::StrCat("it sleeps uninterruptibly", where);
  return absl::StrCat("it sleeps", where);
}

// Where its Python program is; empty: nobody knows.
std::string PythonLine(const v1::RankEvidence& rank) {
  const std::string what = OneLine(rank.python_what(), kMaxLineBytes);
  if (rank.python_where().empty()) return what;
  const std::string where = OneLine(rank.python_where(), kMaxLineBytes);
  return absl::StrCat(what.empty() ? "a line of its own" : what, " (", where, ")");
}

// What its Python program does.
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
  // Where it waits for others says nothing of itself.
  if (!line.empty() && rank.python() != v1::IN_COLLECTIVE) return absl::StrCat("at ", line);
  // Silence may be counted from output, of a worker that never reported a step.
  return rank.step() > 0 ? absl::StrCat("after its report of step ", rank.step())
                         : "at a place it has not told";
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

// Of these, an overdue one, the longest silent; the lowest rank among equals.
size_t LongestSilent(const Ranks& ranks, const Indices& among) {
  return *std::max_element(among.begin(), among.end(), [&](size_t a, size_t b) {
    return std::make_tuple(ranks[a].overdue(), ranks[a].silent_seconds(), -ranks[a].rank()) <
           std::make_tuple(ranks[b].overdue(), ranks[b].silent_seconds(), -ranks[b].rank());
  });
}

// Of these all but the one.
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

// Some wait in a collective and some have not got there.
std::optional<Culprit> WhoIsWaitedFor(const Ranks& ranks) {
  const Indices waiting =
      Where(ranks, [](const auto& rank) { return rank.phase() == v1::WAITING; });
  if (waiting.empty()) return std::nullopt;
  const v1::RankEvidence& first = ranks[FurthestBehind(ranks, waiting)];
  const std::string what = absl::StrCat("bucket ", first.bucket(), " of step ", first.step());
  Indices absent = Where(ranks, [&](const auto& rank) {
    return HasPage(rank) && rank.phase() != v1::WAITING && rank.step() <= first.step();
  });
  // One that writes no page at all comes after those that say they are elsewhere.
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

// All wait, but not for the same.
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
  // The fewest; among equals those furthest behind, which come first.
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

// By the Python stacks: most wait in a collective, and some have not entered it.
std::optional<Culprit> WhoIsOutsideTheCollective(const Ranks& ranks) {
  // A rank that still imports is late, as the first start of a program is.
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

// By the Python stacks: all wait, and not for the same.
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
  // Among equals the last is the most.
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

// What PyTorch's flight recorder tells, and where the two ranks are now.
std::optional<Culprit> ByCalls(const Ranks& ranks, const std::optional<UnlikeCall>& unlike) {
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

// Whoever tells nothing of its calls may be in none, and is suspected before who waits.
std::optional<Culprit> WhoTellsNothing(const Ranks& ranks) {
  return ByCalls(ranks, WhoIsSilent(ranks));
}

// By the Python stacks all wait for the same. A rank whose tensor has another shape may stand there
// too, or have left a call before.
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

// Reports are passed on now and then only: they may be some steps old.
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

// "at hang.py:7", "in the forward pass of step 20"; of one that is stopped that it is.
std::string ShortPlace(const v1::RankEvidence& rank) {
  if (IsStopped(rank)) return absl::StrCat("is stopped (state ", rank.state(), ")");
  if (HasPage(rank)) return Place(rank);
  const std::string& where = rank.python_where();
  if (where.empty()) return Activity(rank).substr(sizeof("it ") - 1);
  return absl::StrCat("at ", OneLine(where.substr(0, where.find(" in ")), kMaxLineBytes),
                      rank.python() == v1::IN_DATA_LOADER ? " in its data loader" : "");
}

// What all of these wait in, where that is one thing: " in all_reduce", " for bucket 0 of step 20".
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
  return Culprit{
      absent.front(),
      absl::StrCat("it was started anew, the others wait for it, and it has not said that "
                   "it takes part; ",
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

}  // namespace cadre::job
