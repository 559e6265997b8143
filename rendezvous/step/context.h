// What the machines of one core share: its options, its time, the durable state and the outbox.
#ifndef CADRE_RENDEZVOUS_STEP_CONTEXT_H_
#define CADRE_RENDEZVOUS_STEP_CONTEXT_H_

#include "base/time.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/config.h"
#include "rendezvous/step/lease_clock.h"
#include "rendezvous/step/outbox.h"

namespace cadre::step {

struct Context {
  Context(const CoreConfig& config, state::State* durable)
      : config(config),
        state(*durable),
        out(config.server_id, durable),
        clock(config.lease, config.reconnect_grace) {}

  const CoreConfig config;
  // The outbox alone changes it.
  const state::State& state;
  Outbox out;
  LeaseClock clock;
  // Of the step under way, on the host's clock: for records and people.
  MonoTime now;
};

}  // namespace cadre::step

#endif  // CADRE_RENDEZVOUS_STEP_CONTEXT_H_
