#include "worker_runtime/shared_memory/control_block.h"

#include "absl/strings/str_cat.h"
#include "worker_runtime/backend/collective_check.h"

namespace cadre::shared_memory {

std::string Describe(const CollectiveCall& call) {
  const std::string what = absl::StrCat(" of ", call.count, " ", backend::Name(call.type));
  switch (call.kind) {
    case Collective::kNone:
      return "nothing";
    case Collective::kAllReduce:
      return absl::StrCat("an all-reduce (", backend::Name(call.op), ")", what);
    case Collective::kReduce:
      return absl::StrCat("a reduce (", backend::Name(call.op), ") to rank ", call.root, what);
    case Collective::kReduceScatter:
      return absl::StrCat("a reduce-scatter (", backend::Name(call.op), ")", what);
    case Collective::kBroadcast:
      return absl::StrCat("a broadcast from rank ", call.root, what);
    case Collective::kAllGather:
      return absl::StrCat("an all-gather", what, " from each");
    case Collective::kAllGatherVarying:
      return absl::StrCat("an all-gather", what, " in parts of fingerprint ", call.root);
    case Collective::kReduceScatterVarying:
      return absl::StrCat("a reduce-scatter (", backend::Name(call.op), ")", what,
                          " in parts of fingerprint ", call.root);
    case Collective::kBarrier:
      return "a barrier";
  }
  return "";
}

uint32_t FingerprintOf(Span<const size_t> counts) {
  uint32_t hash = 2166136261u;
  for (const size_t count : counts) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash = (hash ^ ((count >> shift) & 0xff)) * 16777619u;
    }
  }
  return hash;
}

}  // namespace cadre::shared_memory
