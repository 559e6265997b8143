#include "worker_runtime/checkpoint/outcome.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace cadre::checkpoint {
namespace {

// Lines of any length travel: the store's limit is far above the 1 KiB of an error text.
constexpr size_t kMaxText = 16 * 1024;

}  // namespace

std::string EncodeOutcome(const Result<std::string>& outcome) {
  const absl::string_view text = outcome.ok() ? *outcome : outcome.status().message();
  return absl::StrCat(static_cast<int>(outcome.status().code()), "\n", text.substr(0, kMaxText));
}

Result<std::string> DecodeOutcome(absl::string_view encoded, absl::string_view who) {
  const std::vector<absl::string_view> parts = absl::StrSplit(encoded, absl::MaxSplits('\n', 1));
  int code = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &code)) {
    return InternalError(absl::StrCat(who, "an answer that cannot be read"));
  }
  if (code == 0) return std::string(parts[1]);
  return Status(static_cast<StatusCode>(code), absl::StrCat(who, parts[1]));
}

}  // namespace cadre::checkpoint
