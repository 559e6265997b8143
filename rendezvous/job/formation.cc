#include "rendezvous/job/formation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace cadre::job {
namespace {

using Formed = v1::GenerationFormed;

std::string WhyText(Formed::Why why, uint32_t size) {
  switch (why) {
    case Formed::ALL_NODES:
      return size == 1 ? "the one node is in" : absl::StrCat("all ", size, " nodes are in");
    case Formed::EXPECTED_NODES:
      return "all expected nodes are in";
    case Formed::SURVIVORS:
      return "all surviving nodes are in";
    case Formed::SETTLED:
      return "no further node came in time";
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
  // Who was named once may be fewer than take part by now.
  if (size != 0 && gathering.all_expected && (gathering.survivors == 0 || gathering.survivors_in)) {
    return Form(size, Formed::EXPECTED_NODES);
  }
  if (size != 0 && gathering.survivors > 0 && gathering.survivors_in) {
    return Form(size, Formed::SURVIVORS);
  }
  // The backoff is not the nodes' fault: their time starts when it has passed.
  const MonoTime give_up =
      std::max({gathering.since, gathering.not_before, gathering.granted}) + policy.join_timeout;
  if (size != 0) {
    const MonoTime settled = std::max(gathering.last_join, gathering.since) + policy.settle;
    const MonoTime form_at = std::min(settled, give_up);
    if (now >= form_at) return Form(size, Formed::SETTLED);
    return Wait(form_at,
                absl::StrCat("more nodes (", gathering.present, " in, at most ", most, ")"));
  }
  if (now >= give_up) {
    return {FormationDecision::kGiveUp, 0, Formed::WHY_UNSPECIFIED, "too few nodes came in time",
            MonoTime::Never()};
  }
  const uint32_t least = (policy.min + policy.unit - 1) / policy.unit * policy.unit;
  return Wait(give_up, absl::StrCat(Count(least - gathering.present, "more node"), " (",
                                    gathering.present, " of ", least, " in)"));
}

}  // namespace cadre::job
