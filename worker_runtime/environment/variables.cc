#include "worker_runtime/environment/variables.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace cadre::environment {

absl::string_view TextOf(const GetVariable& get, const char* name) {
  const char* const text = get(name);
  return text == nullptr ? "" : text;
}

Result<std::optional<int>> NumberOf(const GetVariable& get, const char* name) {
  const absl::string_view text = TextOf(get, name);
  if (text.empty()) return std::optional<int>();
  int number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= 0) return std::optional<int>(number);
  return InvalidArgumentError(
      absl::StrCat(name, " is \"", text, "\", but must be a number from 0 to 2147483647"));
}

}  // namespace cadre::environment
