// The host's numbers of streams and calls.
#ifndef CADRE_RENDEZVOUS_STEP_IDS_H_
#define CADRE_RENDEZVOUS_STEP_IDS_H_

#include <cstdint>

namespace cadre {

// One node's stream, numbered by the host and never reused in its life.
struct StreamId {
  uint64_t value = 0;
  friend bool operator==(StreamId a, StreamId b) { return a.value == b.value; }
  friend bool operator<(StreamId a, StreamId b) { return a.value < b.value; }
};

// One unary store call that waits for an answer, numbered by the host likewise.
struct CallId {
  uint64_t value = 0;
  friend bool operator==(CallId a, CallId b) { return a.value == b.value; }
  friend bool operator<(CallId a, CallId b) { return a.value < b.value; }
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_STEP_IDS_H_
