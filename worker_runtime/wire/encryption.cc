#include "worker_runtime/wire/encryption.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"

namespace cadre::wire {

Result<bool> WantsEncryption() {
  const char* const variable = std::getenv(kEncryptVariable);
  const absl::string_view value = variable == nullptr ? "" : variable;
  if (value == "1") return true;
  if (value.empty() || value == "0") return false;
  return InvalidArgumentError(
      absl::StrCat(kEncryptVariable, " is ", Quoted(value), "; it may be 1 or 0, or not be set"));
}

}  // namespace cadre::wire
