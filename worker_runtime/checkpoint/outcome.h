// What a rank's part in something came to, as a value of the store's, for the others. Pure.
#ifndef CADRE_WORKER_RUNTIME_CHECKPOINT_OUTCOME_H_
#define CADRE_WORKER_RUNTIME_CHECKPOINT_OUTCOME_H_

#include <string>

#include "absl/strings/string_view.h"
#include "cadre/result.h"

namespace cadre::checkpoint {

// Texts of more than 16 KiB are cut.
std::string EncodeOutcome(const Result<std::string>& outcome);
// An error's text begins with `who`.
Result<std::string> DecodeOutcome(absl::string_view encoded, absl::string_view who);

}  // namespace cadre::checkpoint

#endif  // CADRE_WORKER_RUNTIME_CHECKPOINT_OUTCOME_H_
