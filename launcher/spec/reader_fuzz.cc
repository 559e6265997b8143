// A job's spec, in YAML: it is read, or refused in one line that names the file.
#include "absl/strings/match.h"
#include "base/check.h"
#include "launcher/spec/reader.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto spec = cadre::launcher::ReadSpec(cadre::fuzz::Text(data, size), "job.yaml");
  if (spec.ok()) return 0;
  CADRE_CHECK(absl::StrContains(spec.status().message(), "job.yaml"));
  CADRE_CHECK(!absl::StrContains(spec.status().message(), "\n"));
  return 0;
}
