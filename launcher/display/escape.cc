#include "launcher/display/escape.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace cadre {

std::string EscapeControl(absl::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F, which terminals obey too, are C2 80 to C2 9F.
    const unsigned char next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (c == '\n') {
      safe += "\\n";
    } else if (c == '\t') {
      safe += "\\t";
    } else if (c < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(&safe, "\\x%02x", c);
    } else if (c == 0xc2 && next >= 0x80 && next <= 0x9f) {
      absl::StrAppendFormat(&safe, "\\x%02x", next);
      ++i;
    } else {
      safe += static_cast<char>(c);
    }
  }
  return safe;
}

}  // namespace cadre
