// The flags of `cadre run` about the job itself, its workers and their output. Pure.
#ifndef CADRE_LAUNCHER_FLAGS_JOB_FLAGS_H_
#define CADRE_LAUNCHER_FLAGS_JOB_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/flags/run_options.h"
#include "launcher/flags/settings.h"

namespace cadre::launcher {

// A flag that is given replaces what the spec says. INVALID_ARGUMENT names the flag.
absl::Status TakeJobFlags(const Settings& settings, RunOptions& options);

// torchrun's lists of texts: "a,b", in which ",," is a comma of a text.
std::vector<std::string> ParseTexts(absl::string_view text);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_FLAGS_JOB_FLAGS_H_
