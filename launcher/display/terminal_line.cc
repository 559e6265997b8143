#include "launcher/display/terminal_line.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "base/utf8.h"

namespace cadre::launcher {
namespace {

constexpr absl::string_view kSgr = "\x1b[";
constexpr absl::string_view kReset = "\x1b[0m";
constexpr size_t kLongestSgr = 64;
constexpr size_t kTab = 8;

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

std::string TerminalLine(absl::string_view line) {
  return TerminalLine(line, std::numeric_limits<size_t>::max());
}

std::string TerminalLine(absl::string_view line, size_t columns) {
  while (absl::ConsumeSuffix(&line, "\r")) continue;
  line.remove_prefix(line.rfind('\r') + 1);  // npos + 1 is 0
  std::string safe;
  safe.reserve(line.size());
  bool coloured = false;
  while (!line.empty()) {
    const size_t sgr = SgrSize(line), size = std::max(sgr, Utf8CharacterSize(line));
    const absl::string_view next = line.substr(0, std::max<size_t>(size, 1));
    line.remove_prefix(next.size());
    if (sgr == 0 && columns == 0) continue;
    const size_t before = safe.size();
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
    if (sgr > 0) continue;
    // What is written out as \xNN takes a column for each character.
    const size_t took = next == "\t"                          ? kTab
                        : safe.size() - before == next.size() ? 1
                                                              : safe.size() - before;
    if (took > columns) safe.resize(before);
    columns -= std::min(columns, took);
  }
  if (coloured) absl::StrAppend(&safe, kReset);
  return safe;
}

}  // namespace cadre::launcher
