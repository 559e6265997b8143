// A program's output made safe for a terminal. Pure.
#ifndef CADRE_LAUNCHER_DISPLAY_TERMINAL_LINE_H_
#define CADRE_LAUNCHER_DISPLAY_TERMINAL_LINE_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre::launcher {

// A line of a program's output, without its newline, for a terminal. Tabs and colours (SGR, as with
// less -R) stay, and a colour ends with the line; of a line that carriage returns overwrite, as a
// progress bar's, the last state is left; other control characters and bytes that are no UTF-8
// become \xNN.
std::string TerminalLine(absl::string_view line);

// The same in so many columns: colours take none, and characters of East Asia and emoji two.
std::string TerminalLine(absl::string_view line, size_t columns);

// The columns that such a line takes, at most: a tab takes 8.
size_t Columns(absl::string_view line);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_TERMINAL_LINE_H_
