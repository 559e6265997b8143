// The options of a core.
#ifndef CADRE_RENDEZVOUS_STEP_CORE_CONFIG_H_
#define CADRE_RENDEZVOUS_STEP_CORE_CONFIG_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "base/time.h"

namespace cadre {

struct CoreConfig {
  // Identifies one lifetime of the durable state. Agents compare it to notice that a server has
  // lost its state.
  uint64_t server_id = 1;
  // A node that sends nothing for this long is declared lost.
  absl::Duration lease = absl::Seconds(10);
  // A node whose stream ended is declared lost after this, unless an agent of the same incarnation
  // reconnects.
  absl::Duration reconnect_grace = absl::Milliseconds(100);
  // If not empty, the server accepts only this job: a server inside a launcher ends with that
  // launcher's job.
  std::string only_job;
  // If true, a node that joins a job which has ended on this server is sent the verdict and does
  // not start a new run: the server is for one run.
  bool runs_once = false;
  // How long nodes may take, beyond the stop grace, to report that a stopped generation is gone.
  absl::Duration stop_margin = absl::Seconds(10);
  // The wall clock at MonoTime 0, in milliseconds since the Unix epoch: for what is shown to
  // people, and for the times at which users want jobs to begin or to have ended.
  int64_t unix_ms_at_zero = 0;
  // Steps return what is to be kept of jobs that end (Effects::account).
  bool accounts = false;

  MonoTime AtUnixMs(int64_t unix_ms) const {
    return MonoTime::FromMicros((unix_ms - unix_ms_at_zero) * 1000);
  }
  // Never gives 0.
  int64_t ToUnixMs(MonoTime at) const {
    return at == MonoTime::Never() ? 0 : unix_ms_at_zero + at.micros() / 1000;
  }
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_STEP_CORE_CONFIG_H_
