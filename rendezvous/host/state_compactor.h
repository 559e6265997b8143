// Replaces the records of a log by a snapshot of their state. It rebuilds the state from the
// records, so that the core's thread need not stop for it. Used by one thread.
#ifndef CADRE_RENDEZVOUS_HOST_STATE_COMPACTOR_H_
#define CADRE_RENDEZVOUS_HOST_STATE_COMPACTOR_H_

#include "rendezvous/log/record_log.h"
#include "rendezvous/state/apply.h"
#include "rendezvous/state/records.h"
#include "rendezvous/state/state.h"

namespace cadre::host {

class StateCompactor final : public log::Compactor {
 public:
  void Add(const v1::Record& record) override { state::Apply(record, &state_); }
  log::RecordRows Take() override {
    log::RecordRows rows;
    state::ForEachOfSnapshot(state_, [&rows](const v1::Record& record) { rows.Add(record); });
    return rows;
  }

 private:
  state::State state_;
};

}  // namespace cadre::host

#endif  // CADRE_RENDEZVOUS_HOST_STATE_COMPACTOR_H_
