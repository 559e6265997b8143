#include "rendezvous/job/ranks.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace cadre::job {
namespace {

// Takes a run of digits off the front, leading zeros dropped.
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

void GrantWishes(const std::vector<RankCandidate>& by_arrival,
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
  GrantWishes(candidates, &seats, &assignment.notes);

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
    if (seat == nullptr) seat = *next++;
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
