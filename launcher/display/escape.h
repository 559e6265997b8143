// Text from peers made safe for a terminal. Pure.
#ifndef CADRE_LAUNCHER_DISPLAY_ESCAPE_H_
#define CADRE_LAUNCHER_DISPLAY_ESCAPE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

// Control characters (a newline too) become \n, \t or \xNN; everything else, UTF-8 included, stays.
std::string EscapeControl(absl::string_view text);

}  // namespace cadre

#endif  // CADRE_LAUNCHER_DISPLAY_ESCAPE_H_
