#include "launcher/slurm/column_format.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace cadre::launcher {
namespace {

constexpr size_t kNameFormatWidth = 20;
constexpr uint32_t kMaxWidth = 10000;

// Takes ".18" or "9" off the text.
void TakeWidth(absl::string_view* text, ColumnOfFormat* column) {
  column->right = absl::ConsumePrefix(text, ".");
  size_t digits = 0;
  while (digits < text->size() && absl::ascii_isdigit((*text)[digits])) ++digits;
  uint32_t width = 0;
  if (digits > 0) {
    const bool small = absl::SimpleAtoi(text->substr(0, digits), &width) && width <= kMaxWidth;
    column->width = small ? width : kMaxWidth;
  }
  text->remove_prefix(digits);
}

}  // namespace

ColumnFormat ParseLetterFormat(absl::string_view text) {
  ColumnFormat format;
  const size_t first = text.find('%');
  format.prefix = std::string(text.substr(0, first));
  if (first == text.npos) return format;
  for (absl::string_view token : absl::StrSplit(text.substr(first + 1), '%')) {
    ColumnOfFormat column;
    TakeWidth(&token, &column);
    column.field = std::string(token.substr(0, 1));
    if (!token.empty()) column.suffix = std::string(token.substr(1));
    format.columns.push_back(std::move(column));
  }
  return format;
}

ColumnFormat ParseNameFormat(absl::string_view text) {
  ColumnFormat format;
  for (const absl::string_view token : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(token, absl::MaxSplits(':', 1));
    ColumnOfFormat column;
    column.field = absl::AsciiStrToLower(absl::StripAsciiWhitespace(parts.first));
    column.width = kNameFormatWidth;
    if (absl::StrContains(token, ':')) {
      absl::string_view rest = parts.second;
      TakeWidth(&rest, &column);
      column.suffix = std::string(rest);
    }
    format.columns.push_back(std::move(column));
  }
  return format;
}

std::string Field(absl::string_view text, size_t width, bool right, bool cuts) {
  if (width == 0) return std::string(text);
  if (cuts) text = text.substr(0, width);
  const std::string filled(width - std::min(width, text.size()), ' ');
  return right ? absl::StrCat(filled, text) : absl::StrCat(text, filled);
}

}  // namespace cadre::launcher
