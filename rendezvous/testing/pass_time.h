// Lets time pass for the state machines of a core, without a core.
#ifndef CADRE_RENDEZVOUS_TESTING_PASS_TIME_H_
#define CADRE_RENDEZVOUS_TESTING_PASS_TIME_H_

#include <algorithm>

#include "absl/time/time.h"
#include "base/time.h"
#include "rendezvous/step/context.h"

namespace cadre {

// Time passes in steps of 50 ms, as on a host that is never late.
inline void PassTime(absl::Duration duration, step::Context* context) {
  const MonoTime until = context->now + duration;
  while (context->now < until) {
    context->now = std::min(until, context->now + absl::Milliseconds(50));
    context->clock.Advance(context->now, context->now, true);
  }
}

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_TESTING_PASS_TIME_H_
