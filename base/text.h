// Text for people: peers' strings made safe to show, durations, lists, signal and error names.
// Pure.
#ifndef CADRE_BASE_TEXT_H_
#define CADRE_BASE_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre {

// At most `limit` bytes, cut at a character, "..." where something was cut.
std::string Shortened(absl::string_view text, size_t limit);

// Control characters (a newline too) become \n, \t or \xNN; everything else, UTF-8 included, stays.
std::string EscapeControl(absl::string_view text);

// EscapeControl, then shortened.
std::string OneLine(absl::string_view text, size_t limit);

// In quotes, one line, 64 bytes of it.
std::string Quoted(absl::string_view text);

bool HasControlCharacters(absl::string_view text);

// "9m58s", "1h30m", "3s", "250ms"; over a second rounded up to whole seconds.
std::string ShortDuration(absl::Duration duration);

// "a", "a, b", "a, b, c and 4 more": three at most. `total` counts those that were left out of
// `first` as well.
std::string FirstFew(const std::vector<std::string>& first, size_t total);
constexpr size_t kFirstFew = 3;

// "1 node", "2 nodes".
std::string Count(uint64_t n, absl::string_view noun);

// "SIGKILL", or "signal 64" for one without a name.
std::string SignalName(int signal);

// "signal 9 (SIGKILL)", or "signal 64".
std::string SignalText(int signal);

// "No such file or directory", or "error 99".
std::string ErrnoText(int error);

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_H_
