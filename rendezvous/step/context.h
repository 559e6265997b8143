// Context: what the state machines of one core share: options, time, durable state, and
// the builder of the effects of a step.
#ifndef CADRE_RENDEZVOUS_STEP_CONTEXT_H_
#define CADRE_RENDEZVOUS_STEP_CONTEXT_H_

#include <optional>

#include "base/time.h"
#include "rendezvous/accounting/rows.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/core_config.h"
#include "rendezvous/step/effects.h"
#include "rendezvous/step/lease_clock.h"

namespace cadre::step {

struct Context {
  Context(const CoreConfig& config, state::State* durable)
      : config(config),
        state(*durable),
        out(config.server_id, durable,
            config.accounts
                ? std::optional<accounting::RowOrigin>({config.server_id, config.unix_ms_at_zero})
                : std::nullopt),
        clock(config.lease, config.reconnect_grace) {}

  const CoreConfig config;
  // Within a step only `out` changes it.
  const state::State& state;
  EffectsBuilder out;
  LeaseClock clock;
  // The host's time of the current step, for records and display. Deadlines are counted on `clock`.
  MonoTime now;
};

}  // namespace cadre::step

#endif  // CADRE_RENDEZVOUS_STEP_CONTEXT_H_
