#include "worker_runtime/shared_memory/control_block.h"

#include "absl/strings/str_cat.h"
#include "worker_runtime/backend/collective_check.h"

namespace cadre::shared_memory {

std::string Describe(const CollectiveWord& word) {
  const std::string what = absl::StrCat(" of ", word.count, " ", backend::Name(word.type));
  switch (word.kind) {
    case Collective::kNone:
      return "nothing";
    case Collective::kAllReduce:
      return absl::StrCat("an all-reduce (", backend::Name(word.op), ")", what);
    case Collective::kReduce:
      return absl::StrCat("a reduce (", backend::Name(word.op), ") to rank ", word.root, what);
    case Collective::kReduceScatter:
      return absl::StrCat("a reduce-scatter (", backend::Name(word.op), ")", what);
    case Collective::kBroadcast:
      return absl::StrCat("a broadcast from rank ", word.root, what);
    case Collective::kAllGather:
      return absl::StrCat("an all-gather", what, " from each");
    case Collective::kAllGatherVarying:
      return absl::StrCat("an all-gather", what, " in parts of fingerprint ", word.root);
    case Collective::kBarrier:
      return "a barrier";
  }
  return "";
}

}  // namespace cadre::shared_memory
