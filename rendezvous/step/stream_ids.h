// Numbers that the host gives to streams and calls.
#ifndef CADRE_RENDEZVOUS_STEP_STREAM_IDS_H_
#define CADRE_RENDEZVOUS_STEP_STREAM_IDS_H_

#include <cstdint>

namespace cadre {

// The stream of one node. The host numbers streams and never reuses a number in its lifetime.
struct StreamId {
  uint64_t value = 0;
  friend bool operator==(StreamId a, StreamId b) { return a.value == b.value; }
  friend bool operator<(StreamId a, StreamId b) { return a.value < b.value; }
};

// A unary store call that waits for its reply. The host numbers calls like streams.
struct CallId {
  uint64_t value = 0;
  friend bool operator==(CallId a, CallId b) { return a.value == b.value; }
  friend bool operator<(CallId a, CallId b) { return a.value < b.value; }
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_STEP_STREAM_IDS_H_
