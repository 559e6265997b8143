// What is said of a node whose version of Cadre is another than the server's. Pure.
#ifndef CADRE_LAUNCHER_DISPLAY_VERSION_LINE_H_
#define CADRE_LAUNCHER_DISPLAY_VERSION_LINE_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"

namespace cadre::launcher {

// "n1 runs Cadre 0.2, which is not the server's version\n".
inline std::string VersionLine(absl::string_view node, absl::string_view version) {
  return EscapeControl(
             absl::StrCat(node, " runs Cadre ", version, ", which is not the server's version")) +
         "\n";
}

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_VERSION_LINE_H_
