#include "launcher/display/escape.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/utf8.h"

namespace cadre {
namespace {

constexpr absl::string_view kSgr = "\x1b[";
constexpr absl::string_view kReset = "\x1b[0m";
constexpr size_t kLongestSgr = 64;

// Bytes of the colour that the text begins with; 0: with none.
size_t SgrSize(absl::string_view text) {
  if (!absl::StartsWith(text, kSgr)) return 0;
  size_t size = kSgr.size();
  while (size < text.size() && size < kLongestSgr &&
         (absl::ascii_isdigit(text[size]) || text[size] == ';' || text[size] == ':')) {
    ++size;
  }
  return size < text.size() && text[size] == 'm' ? size + 1 : 0;
}

}  // namespace

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

std::string TerminalLine(absl::string_view line) {
  absl::ConsumeSuffix(&line, "\r");
  std::string safe;
  safe.reserve(line.size());
  bool coloured = false;
  while (!line.empty()) {
    const size_t sgr = SgrSize(line), size = std::max(sgr, Utf8CharacterSize(line));
    const absl::string_view next = line.substr(0, std::max<size_t>(size, 1));
    line.remove_prefix(next.size());
    if (sgr > 0) {
      coloured = next != kReset && next != "\x1b[m";
      absl::StrAppend(&safe, next);
    } else if (size == 0) {
      absl::StrAppendFormat(&safe, "\\x%02x", static_cast<unsigned char>(next[0]));
    } else if (next == "\t") {
      safe += '\t';
    } else {
      absl::StrAppend(&safe, EscapeControl(next));
    }
  }
  if (coloured) absl::StrAppend(&safe, kReset);
  return safe;
}

}  // namespace cadre
