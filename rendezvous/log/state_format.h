// How a server treats state of another version. Each log stores the number of the format that it
// was written in. A new field of a record or of the state leaves it as it is; it is raised when a
// message or the layout of a log changes its meaning. From format 3 on, which is the first whose
// state is declared in proto/state.proto, an older one is converted where a log opens it.
#ifndef CADRE_RENDEZVOUS_LOG_STATE_FORMAT_H_
#define CADRE_RENDEZVOUS_LOG_STATE_FORMAT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cadre::log {

// Of what this version writes, in a state directory as in etcd.
inline constexpr int64_t kStateFormat = 3;

struct ReadableFormats {
  int64_t oldest = kStateFormat;
  int64_t newest = kStateFormat;
};

// FAILED_PRECONDITION, one line, when `format` is not among those that this version reads. `what`
// names the state, and `otherwise` says what else can be done: "move the directory away".
absl::Status CheckStateFormat(absl::string_view what, int64_t format, absl::string_view otherwise,
                              const ReadableFormats& reads = {});

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_STATE_FORMAT_H_
