// The options of a core.
#ifndef CADRE_RENDEZVOUS_STEP_CONFIG_H_
#define CADRE_RENDEZVOUS_STEP_CONFIG_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace cadre {

struct CoreConfig {
  // One life of the state; agents notice when it changes.
  uint64_t server_id = 1;
  // A node that has not been heard for this long is lost.
  absl::Duration lease = absl::Seconds(10);
  // A node whose stream ended is lost after this, unless the same incarnation comes back.
  absl::Duration reconnect_grace = absl::Milliseconds(100);
  // The one job this server is for; empty: any. A server inside a launcher ends with its job, so it
  // must not take in others.
  std::string only_job;
  // Who comes after its end hears that, and does not begin it anew: this server is for one run.
  bool runs_once = false;
  // How long the host's nodes may take to report a stopped generation beyond its grace.
  absl::Duration stop_margin = absl::Seconds(10);
  // Wall clock, milliseconds since the Unix epoch, at MonoTime 0. For people only.
  int64_t unix_ms_at_zero = 0;
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_STEP_CONFIG_H_
