#include "worker_runtime/backend/call_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker_runtime/backend/collective_check.h"

namespace cadre::backend {

std::string TextOf(const Buffer& buffer) {
  return absl::StrCat(buffer.count, " ", Name(buffer.type));
}

std::string AllReduceText(const Buffer& buffer, const Reduction& reduction) {
  return absl::StrCat("all-reduce (", Name(reduction.op), ") of ", TextOf(buffer));
}

std::string ReduceText(const Buffer& buffer, const Reduction& reduction, int root) {
  return absl::StrCat("reduce (", Name(reduction.op), ") to rank ", root, " of ", TextOf(buffer));
}

std::string ReduceScatterText(const Buffer& output, const Reduction& reduction) {
  return absl::StrCat("reduce-scatter (", Name(reduction.op), ") of ", TextOf(output));
}

std::string ReduceScatterVaryingText(const Buffer& input, const Reduction& reduction,
                                     Span<const size_t> counts) {
  return absl::StrCat("reduce-scatter (", Name(reduction.op), ") of ", TextOf(input), " in parts ",
                      absl::StrJoin(counts, "+"));
}

std::string BroadcastText(const Buffer& buffer, int root) {
  return absl::StrCat("broadcast from rank ", root, " of ", TextOf(buffer));
}

std::string AllGatherText(const Buffer& input) {
  return absl::StrCat("all-gather of ", TextOf(input));
}

std::string AllGatherVaryingText(const Buffer& output, Span<const size_t> counts) {
  return absl::StrCat("all-gather of ", TextOf(output), " in parts ", absl::StrJoin(counts, "+"));
}

}  // namespace cadre::backend
