#include "launcher/display/output_format.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/text.h"

namespace cadre::launcher {
namespace {

constexpr absl::string_view kSgr = "\x1b[";
constexpr absl::string_view kReset = "\x1b[0m";
constexpr size_t kLongestSgr = 64;
constexpr size_t kTab = 8;

// Bytes of the colour code at the beginning of the text; 0: there is none.
size_t SgrSize(absl::string_view text) {
  if (!absl::StartsWith(text, kSgr)) return 0;
  size_t size = kSgr.size();
  while (size < text.size() && size < kLongestSgr &&
         (absl::ascii_isdigit(text[size]) || text[size] == ';' || text[size] == ':')) {
    ++size;
  }
  return size < text.size() && text[size] == 'm' ? size + 1 : 0;
}

char32_t CodePoint(absl::string_view character) {
  if (character.size() == 1) return static_cast<unsigned char>(character[0]);
  char32_t code = static_cast<unsigned char>(character[0]) & (0x7f >> character.size());
  for (const char byte : character.substr(1)) code = code << 6 | (byte & 0x3f);
  return code;
}

// The columns of a printable character. Terminals follow Unicode's East Asian Width, whatever this
// process's locale is.
size_t CharacterColumns(char32_t code) {
  struct Range {
    char32_t first, last;
  };
  constexpr Range kNone[] = {{0x300, 0x36f}, {0x200b, 0x200f}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}};
  constexpr Range kTwo[] = {
      {0x1100, 0x115f},   {0x231a, 0x231b},   {0x23e9, 0x23ec},   {0x2614, 0x2615},
      {0x26a1, 0x26a1},   {0x2705, 0x2705},   {0x2728, 0x2728},   {0x274c, 0x274c},
      {0x2b50, 0x2b50},   {0x2e80, 0x303e},   {0x3041, 0xa4cf},   {0xac00, 0xd7a3},
      {0xf900, 0xfaff},   {0xfe30, 0xfe6f},   {0xff00, 0xff60},   {0xffe0, 0xffe6},
      {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};
  const auto holds = [code](const Range& range) {
    return code >= range.first && code <= range.last;
  };
  if (std::any_of(std::begin(kNone), std::end(kNone), holds)) return 0;
  return std::any_of(std::begin(kTwo), std::end(kTwo), holds) ? 2 : 1;
}

}  // namespace

size_t Columns(absl::string_view line) {
  size_t columns = 0;
  while (!line.empty()) {
    const size_t sgr = SgrSize(line);
    const size_t size = std::max<size_t>(std::max(sgr, Utf8CharacterSize(line)), 1);
    if (sgr == 0)
      columns += line[0] == '\t' ? kTab : CharacterColumns(CodePoint(line.substr(0, size)));
    line.remove_prefix(size);
  }
  return columns;
}

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
    // Each character of an escape such as \xNN takes a column.
    const size_t took = next == "\t"                          ? kTab
                        : safe.size() - before == next.size() ? CharacterColumns(CodePoint(next))
                                                              : safe.size() - before;
    if (took > columns) safe.resize(before);
    columns -= std::min(columns, took);
  }
  if (coloured) absl::StrAppend(&safe, kReset);
  return safe;
}

std::string FormatTable(const std::vector<std::string>& header,
                        const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::vector<std::string>> all = {header};
  for (const auto& row : rows) {
    std::vector<std::string>& safe = all.emplace_back();
    for (const std::string& cell : row) safe.push_back(EscapeControl(cell));
  }
  std::vector<size_t> widths(header.size());
  for (const auto& row : all) {
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : all) {
    std::string line;
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      absl::StrAppend(&line, row[i], std::string(widths[i] - row[i].size() + 2, ' '));
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string JsonText(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  // It fails only for the well-known type Any, which our messages do not have.
  google::protobuf::util::MessageToJsonString(message, &json, options).ok();
  return json;
}

}  // namespace cadre::launcher
