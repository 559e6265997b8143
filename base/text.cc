// Text for people, and UTF-8.
#include "base/text.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace cadre {
namespace {

constexpr size_t kQuotedBytes = 64;

bool IsControl(unsigned char c) { return c < 0x20 || c == 0x7f; }

// The control characters U+0080 to U+009F, which some terminals obey.
bool IsC1(absl::string_view text, size_t i) {
  return static_cast<unsigned char>(text[i]) == 0xc2 && i + 1 < text.size() &&
         static_cast<unsigned char>(text[i + 1]) >= 0x80 &&
         static_cast<unsigned char>(text[i + 1]) < 0xa0;
}

}  // namespace

std::string Shortened(absl::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  size_t cut = limit > 3 ? limit - 3 : 0;
  // A continuation byte is never the first one left out.
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;
  return absl::StrCat(text.substr(0, cut), "...");
}

std::string EscapeControl(absl::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = text[i];
    if (c == '\n') {
      safe += "\\n";
    } else if (c == '\t') {
      safe += "\\t";
    } else if (IsControl(c)) {
      absl::StrAppendFormat(&safe, "\\x%02x", c);
    } else if (IsC1(text, i)) {
      absl::StrAppendFormat(&safe, "\\x%02x", static_cast<unsigned char>(text[++i]));
    } else {
      safe += text[i];
    }
  }
  return safe;
}

std::string OneLine(absl::string_view text, size_t limit) {
  // One byte more than the limit, so that Shortened notices the cut.
  return Shortened(EscapeControl(text.substr(0, limit + 1)), limit);
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", OneLine(text, kQuotedBytes), "\"");
}

bool HasControlCharacters(absl::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (IsControl(text[i]) || IsC1(text, i)) return true;
  }
  return false;
}

std::string ShortDuration(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return "forever";
  if (duration <= absl::ZeroDuration()) return "0s";
  if (duration < absl::Seconds(1)) {
    return absl::StrCat(absl::ToInt64Milliseconds(absl::Ceil(duration, absl::Milliseconds(1))),
                        "ms");
  }
  const int64_t seconds = absl::ToInt64Seconds(absl::Ceil(duration, absl::Seconds(1)));
  std::string text;
  if (seconds >= 3600) absl::StrAppend(&text, seconds / 3600, "h");
  if (seconds / 60 % 60 != 0) absl::StrAppend(&text, seconds / 60 % 60, "m");
  if (seconds % 60 != 0) absl::StrAppend(&text, seconds % 60, "s");
  return text;
}

std::string FirstFew(const std::vector<std::string>& first, size_t total) {
  std::string text;
  size_t shown = 0;
  for (const std::string& item : first) {
    if (shown == kFirstFew) break;
    absl::StrAppend(&text, shown == 0 ? "" : ", ", item);
    ++shown;
  }
  if (total > shown) absl::StrAppend(&text, shown == 0 ? "" : " and ", total - shown, " more");
  return text;
}

std::string Count(uint64_t n, absl::string_view noun) {
  return absl::StrCat(n, " ", noun, n == 1 ? "" : "s");
}

std::string SizeText(uint64_t bytes) {
  constexpr uint64_t kGib = uint64_t{1} << 30;
  if (bytes % (kGib / 4) != 0) return absl::StrCat(bytes >> 20, " MiB");
  static constexpr const char* kQuarters[] = {"", ".25", ".5", ".75"};
  return absl::StrCat(bytes / kGib, kQuarters[bytes % kGib / (kGib / 4)], " GiB");
}

std::string SignalName(int signal) {
  const char* const name = sigabbrev_np(signal);
  return name == nullptr ? absl::StrCat("signal ", signal) : absl::StrCat("SIG", name);
}

std::string SignalText(int signal) {
  const char* const name = sigabbrev_np(signal);
  return absl::StrCat("signal ", signal, name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
}

std::string ErrnoText(int error) {
  const char* const text = strerrordesc_np(error);
  return text == nullptr ? absl::StrCat("error ", error) : std::string(text);
}

size_t Utf8CharacterSize(absl::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong encodings, halves of UTF-16 pairs, and code points past the last one.
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
