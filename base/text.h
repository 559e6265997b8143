// Text for people: peers' strings made safe to show, durations, sizes, lists, signal and error
// names; and checks of UTF-8. Pure.
#ifndef CADRE_BASE_TEXT_H_
#define CADRE_BASE_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre {

// Returns `limit` bytes at most, cut between characters, with "..." at the end if it was cut.
std::string Shortened(absl::string_view text, size_t limit);

// Control characters (newlines too) become \n, \t or \xNN; everything else, UTF-8 included, is
// kept.
std::string EscapeControl(absl::string_view text);

// EscapeControl, then shortened.
std::string OneLine(absl::string_view text, size_t limit);

// In quotes, on one line, and 64 bytes at most.
std::string Quoted(absl::string_view text);

bool HasControlCharacters(absl::string_view text);

// "9m58s", "1h30m", "3s", "250ms"; durations above a second are rounded up to whole seconds.
std::string ShortDuration(absl::Duration duration);

// "a", "a, b", "a, b, c and 4 more": three at most. `total` counts those that were left out of
// `first` as well.
std::string FirstFew(const std::vector<std::string>& first, size_t total);
constexpr size_t kFirstFew = 3;

// "1 node", "2 nodes".
std::string Count(uint64_t n, absl::string_view noun);

// Memory: "9 GiB", "62.75 GiB" or, if it is no multiple of 256 MiB, in whole ones "1100 MiB".
std::string SizeText(uint64_t bytes);

// "SIGKILL", or "signal 64" for one without a name.
std::string SignalName(int signal);

// "signal 9 (SIGKILL)", or "signal 64".
std::string SignalText(int signal);

// "No such file or directory", or "error 99".
std::string ErrnoText(int error);

// --- UTF-8 (RFC 3629), which Protobuf requires of every string ---

// The size of the first character of `text`, which must not be empty; 0: it is not valid UTF-8.
size_t Utf8CharacterSize(absl::string_view text);

bool IsUtf8(absl::string_view text);

// Returns `text` with U+FFFD in place of each byte that belongs to no character.
std::string ReplaceInvalidUtf8(absl::string_view text);

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_H_
