#include "base/text.h"

#include <cerrno>
#include <csignal>
#include <cstdint>

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

std::string OneLine(absl::string_view text, size_t limit) {
  std::string line;
  for (size_t i = 0; i < text.size() && line.size() <= limit; ++i) {
    const unsigned char c = text[i];
    if (c == '\n') {
      line += "\\n";
    } else if (c == '\t') {
      line += "\\t";
    } else if (IsControl(c)) {
      absl::StrAppendFormat(&line, "\\x%02x", c);
    } else if (IsC1(text, i)) {
      absl::StrAppendFormat(&line, "\\x%02x", static_cast<unsigned char>(text[++i]));
    } else {
      line += text[i];
    }
  }
  return Shortened(line, limit);
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

absl::string_view SignalName(int signal) {
  switch (signal) {
    case SIGHUP:
      return "SIGHUP";
    case SIGINT:
      return "SIGINT";
    case SIGQUIT:
      return "SIGQUIT";
    case SIGILL:
      return "SIGILL";
    case SIGTRAP:
      return "SIGTRAP";
    case SIGABRT:
      return "SIGABRT";
    case SIGBUS:
      return "SIGBUS";
    case SIGFPE:
      return "SIGFPE";
    case SIGKILL:
      return "SIGKILL";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGSEGV:
      return "SIGSEGV";
    case SIGUSR2:
      return "SIGUSR2";
    case SIGPIPE:
      return "SIGPIPE";
    case SIGALRM:
      return "SIGALRM";
    case SIGTERM:
      return "SIGTERM";
    case SIGXCPU:
      return "SIGXCPU";
    case SIGXFSZ:
      return "SIGXFSZ";
    case SIGSYS:
      return "SIGSYS";
    default:
      return "";
  }
}

std::string ErrnoText(int error) {
  switch (error) {
    case EPERM:
      return "Operation not permitted";
    case ENOENT:
      return "No such file or directory";
    case EIO:
      return "Input/output error";
    case E2BIG:
      return "Argument list too long";
    case ENOEXEC:
      return "Exec format error";
    case EAGAIN:
      return "Resource temporarily unavailable";
    case ENOMEM:
      return "Cannot allocate memory";
    case EACCES:
      return "Permission denied";
    case ENOTDIR:
      return "Not a directory";
    case EISDIR:
      return "Is a directory";
    case EMFILE:
      return "Too many open files";
    case ETXTBSY:
      return "Text file busy";
    case ENOSPC:
      return "No space left on device";
    case EROFS:
      return "Read-only file system";
    case ELOOP:
      return "Too many levels of symbolic links";
    case ENAMETOOLONG:
      return "File name too long";
    default:
      return absl::StrCat("error ", error);
  }
}

}  // namespace cadre
