#include "base/tokens/renewed_token.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/token.h"

namespace cadre {

RenewedToken::RenewedToken(std::string token, std::string file)
    : file_(std::move(file)), token_(std::move(token)) {}

std::string RenewedToken::Current() {
  // Not while others wait.
  absl::StatusOr<std::string> read = absl::NotFoundError("there is no file");
  if (!file_.empty()) read = ReadTokenFile(file_);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (read.ok()) token_ = *std::move(read);
  return token_;
}

}  // namespace cadre
