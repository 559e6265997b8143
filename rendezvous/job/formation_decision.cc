#include "rendezvous/job/formation_decision.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/text.h"

namespace cadre::job {
namespace {

using Formed = v1::GenerationFormed;

std::string WhyText(Formed::Why why, uint32_t size) {
  switch (why) {
    case Formed::ALL_NODES:
      return size == 1 ? "the only node has joined"
                       : absl::StrCat("all ", size, " nodes have joined");
    case Formed::EXPECTED_NODES:
      return "all expected nodes have joined";
    case Formed::SURVIVORS:
      return "all surviving nodes have joined";
    case Formed::SETTLED:
      return "no further node joined in time";
    default:
      return "";
  }
}

FormationDecision Form(uint32_t size, Formed::Why why) {
  return {FormationDecision::kForm, size, why, WhyText(why, size), MonoTime::Never()};
}

FormationDecision Wait(MonoTime again_at, std::string reason) {
  return {FormationDecision::kWait, 0, Formed::WHY_UNSPECIFIED, std::move(reason), again_at};
}

}  // namespace

FormationDecision DecideFormation(const Gathering& gathering, const state::Policy& policy,
                                  MonoTime now) {
  if (now < gathering.not_before) {
    return Wait(gathering.not_before, "the restart's backoff to pass");
  }
  const uint32_t most = std::min(policy.target(), gathering.most);
  const uint32_t size = policy.SizeFor(std::min(gathering.present, most));
  if (size != 0 && size == most) {
    return Form(size, Formed::ALL_NODES);
  }
  // The list of expected nodes may be shorter than the nodes that take part by now.
  if (size != 0 && gathering.all_expected && (gathering.survivors == 0 || gathering.survivors_in)) {
    return Form(size, Formed::EXPECTED_NODES);
  }
  if (size != 0 && gathering.survivors > 0 && gathering.survivors_in) {
    return Form(size, Formed::SURVIVORS);
  }
  // The join timeout starts after the backoff, which is not the nodes' fault.
  const MonoTime give_up =
      std::max({gathering.since, gathering.not_before, gathering.granted}) + policy.join_timeout;
  if (size != 0) {
    const MonoTime settled = std::max(gathering.last_join, gathering.since) + policy.settle;
    const MonoTime form_at = std::min(settled, give_up);
    if (now >= form_at) return Form(size, Formed::SETTLED);
    return Wait(form_at,
                absl::StrCat("more nodes (", gathering.present, " joined, at most ", most, ")"));
  }
  if (now >= give_up) {
    return {FormationDecision::kGiveUp, 0, Formed::WHY_UNSPECIFIED, "too few nodes joined in time",
            MonoTime::Never()};
  }
  const uint32_t least = (policy.min + policy.unit - 1) / policy.unit * policy.unit;
  return Wait(give_up, absl::StrCat(Count(least - gathering.present, "more node"), " (",
                                    gathering.present, " of ", least, " joined)"));
}

namespace {

// Removes a run of digits from the front and returns it without leading zeros.
absl::string_view TakeDigits(absl::string_view* text) {
  size_t end = 0;
  while (end < text->size() && absl::ascii_isdigit((*text)[end])) ++end;
  absl::string_view digits = text->substr(0, end);
  text->remove_prefix(end);
  while (digits.size() > 1 && digits[0] == '0') digits.remove_prefix(1);
  return digits;
}

bool ComesBefore(const RankCandidate& a, const RankCandidate& b) {
  const int hosts = CompareNaturally(a.host, b.host);
  if (hosts != 0) return hosts < 0;
  const int nodes = CompareNaturally(a.node, b.node);
  if (nodes != 0) return nodes < 0;
  return a.node < b.node;
}

void SeatByWish(const std::vector<RankCandidate>& by_arrival,
                std::vector<const RankCandidate*>* seats, std::vector<std::string>* notes) {
  for (const RankCandidate& candidate : by_arrival) {
    if (candidate.wanted_node_rank < 0) continue;
    const size_t wanted = candidate.wanted_node_rank;
    if (wanted >= seats->size()) {
      notes->push_back(absl::StrCat("node ", candidate.node, " asked for node rank ", wanted,
                                    ", but there are only ", seats->size(), " nodes"));
    } else if ((*seats)[wanted] != nullptr) {
      notes->push_back(absl::StrCat("node ", candidate.node, " asked for node rank ", wanted,
                                    ", which node ", (*seats)[wanted]->node, " asked for first"));
    } else {
      (*seats)[wanted] = &candidate;
    }
  }
}

}  // namespace

int CompareNaturally(absl::string_view a, absl::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (absl::ascii_isdigit(a[0]) && absl::ascii_isdigit(b[0])) {
      const absl::string_view x = TakeDigits(&a), y = TakeDigits(&b);
      if (x.size() != y.size()) return x.size() < y.size() ? -1 : 1;
      const int order = x.compare(y);
      if (order != 0) return order;
      continue;
    }
    if (a[0] != b[0]) {
      return static_cast<unsigned char>(a[0]) < static_cast<unsigned char>(b[0]) ? -1 : 1;
    }
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  return static_cast<int>(!a.empty()) - static_cast<int>(!b.empty());
}

RankAssignment AssignRanks(std::vector<RankCandidate> candidates,
                           const std::vector<std::string>& previous) {
  RankAssignment assignment;
  std::sort(
      candidates.begin(), candidates.end(),
      [](const RankCandidate& a, const RankCandidate& b) { return a.admission < b.admission; });
  std::vector<const RankCandidate*> seats(candidates.size(), nullptr);
  SeatByWish(candidates, &seats, &assignment.notes);

  std::map<std::string, const RankCandidate*> unseated;
  for (const RankCandidate& candidate : candidates) unseated[candidate.node] = &candidate;
  for (const RankCandidate* seated : seats) {
    if (seated != nullptr) unseated.erase(seated->node);
  }
  for (size_t rank = 0; rank < previous.size() && rank < seats.size(); ++rank) {
    const auto found = unseated.find(previous[rank]);
    if (seats[rank] != nullptr || found == unseated.end()) continue;
    seats[rank] = found->second;
    unseated.erase(found);
  }
  std::vector<const RankCandidate*> rest;
  for (const auto& [node, candidate] : unseated) rest.push_back(candidate);
  std::sort(rest.begin(), rest.end(),
            [](const RankCandidate* a, const RankCandidate* b) { return ComesBefore(*a, *b); });
  auto next = rest.begin();
  uint32_t first_rank = 0;
  for (const RankCandidate*& seat : seats) {
    if (seat == nullptr) {
      // There are as many seats as candidates, and each of these has its own name.
      CADRE_CHECK(next != rest.end(), rest.size(), " nodes without a seat");
      seat = *next++;
    }
    saved::Member member;
    member.set_node(seat->node);
    member.set_first_rank(first_rank);
    member.set_slots(seat->slots);
    first_rank += seat->slots;
    assignment.members.push_back(std::move(member));
  }
  return assignment;
}

}  // namespace cadre::job
