// How a server treats state of another version. Each log stores the number of the format that
// it was written in, and raises it when a record or the layout changes its meaning; a new field of
// a record does not. A log that can read an older format converts it where it opens the state, and
// passes that format as `oldest`.
#ifndef CADRE_RENDEZVOUS_LOG_STATE_FORMAT_H_
#define CADRE_RENDEZVOUS_LOG_STATE_FORMAT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cadre::log {

struct StateFormat {
  int64_t oldest;
  int64_t newest;
};

// FAILED_PRECONDITION, one line, when `format` is not among those that this version reads. `what`
// names the state, and `otherwise` says what else can be done: "move the directory away".
absl::Status CheckStateFormat(absl::string_view what, int64_t format, const StateFormat& reads,
                              absl::string_view otherwise);

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_STATE_FORMAT_H_
