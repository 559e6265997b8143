#include "base/utf8.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cadre {

size_t Utf8CharacterSize(absl::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Longer than needed, halves of UTF-16 pairs, or past the last character there is.
  if ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f) ||
      (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f)) {
    return 0;
  }
  return size;
}

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t size = Utf8CharacterSize(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

std::string ReplaceInvalidUtf8(absl::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const size_t size = Utf8CharacterSize(text);
    absl::StrAppend(&valid, size == 0 ? "\xef\xbf\xbd" : text.substr(0, size));
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  return valid;
}

}  // namespace cadre
