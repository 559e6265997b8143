// A machine's configuration file: its section is parsed, or refused in one line that names the
// file.
#include <vector>

#include "absl/strings/match.h"
#include "base/check.h"
#include "launcher/flags/config_file.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<cadre::launcher::Flag> flags = {{"host", "ADDRESS", ""},
                                                           {"token-file", "FILE", ""}};
  const auto settings =
      cadre::launcher::ParseConfig(cadre::fuzz::Text(data, size), "cadre.yaml", "server", flags);
  if (settings.ok()) return 0;
  CADRE_CHECK(absl::StrContains(settings.status().message(), "cadre.yaml"));
  CADRE_CHECK(!absl::StrContains(settings.status().message(), "\n"));
  return 0;
}
