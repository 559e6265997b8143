// Makes the records of a log fewer by way of the state that they give. It keeps a state of its own,
// so that whoever has the core need not stop for it. One thread.
#ifndef CADRE_RENDEZVOUS_HOST_STATE_SHORTENER_H_
#define CADRE_RENDEZVOUS_HOST_STATE_SHORTENER_H_

#include "rendezvous/log/record_log.h"
#include "rendezvous/state/apply.h"
#include "rendezvous/state/snapshot.h"
#include "rendezvous/state/state.h"

namespace cadre::host {

class StateShortener final : public log::Shortener {
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

#endif  // CADRE_RENDEZVOUS_HOST_STATE_SHORTENER_H_
