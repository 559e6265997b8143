// A job's spec, in YAML: it is read, or refused in a line for each thing that is wrong, which names
// the file.
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "launcher/spec/reader.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto spec = cadre::launcher::ReadSpec(cadre::fuzz::Text(data, size), "job.yaml");
  if (spec.ok()) return 0;
  for (const absl::string_view line : absl::StrSplit(spec.status().message(), '\n')) {
    CADRE_CHECK(absl::StrContains(line, "job.yaml"));
  }
  return 0;
}
