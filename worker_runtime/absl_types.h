// Converts Abseil's types, which base/, rpc/ and the runtime's own sources use, to those of the
// public headers and back. Not installed: programs that include the public headers need not have
// Abseil.
#ifndef CADRE_WORKER_RUNTIME_ABSL_TYPES_H_
#define CADRE_WORKER_RUNTIME_ABSL_TYPES_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cadre/status.h"

namespace cadre {

template <>
struct StatusConversion<absl::Status> {
  static Status From(const absl::Status& status) {
    return Status(static_cast<StatusCode>(status.code()), std::string(status.message()));
  }
  static absl::Status To(const Status& status) {
    return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
  }
};

// Debian's absl::string_view is not std::string_view, and absl::StrCat accepts no other.
inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_ABSL_TYPES_H_
