// Finds the word that a user probably meant. Pure.
#ifndef CADRE_LAUNCHER_FLAGS_NEAREST_H_
#define CADRE_LAUNCHER_FLAGS_NEAREST_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre::launcher {

// The candidate with the smallest edit distance to `word` (a swap of neighbours counts once), or ""
// if none is close: more than a third of the word, rounded, would have to change.
std::string Nearest(absl::string_view word, const std::vector<std::string>& candidates);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_FLAGS_NEAREST_H_
