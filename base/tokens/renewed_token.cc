#include "base/tokens/renewed_token.h"

#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "base/token.h"

namespace cadre {

RenewedToken::RenewedToken(std::string token, std::string file)
    : file_(std::move(file)), token_(std::move(token)) {}

std::string RenewedToken::Current() {
  // The mutex must not be held during the read.
  std::optional<absl::StatusOr<std::string>> read;
  if (!file_.empty()) {
    read = files_.ResultWithin(kFileTaskHungAfter, [file = file_] { return ReadTokenFile(file); });
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (read.has_value() && read->ok()) token_ = **std::move(read);
  return token_;
}

}  // namespace cadre
