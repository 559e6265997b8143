// A job's spec, in YAML: it is parsed, or refused with a line for each error, which names the file.
// And a value of --set: it is taken, or refused with one line.
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "launcher/spec/job_spec.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cadre::v1::JobSpec job;
  const absl::Status set = cadre::launcher::SetInSpec(cadre::fuzz::Text(data, size), job);
  CADRE_CHECK(!absl::StrContains(set.message(), '\n'));
  const auto spec = cadre::launcher::ReadSpec(cadre::fuzz::Text(data, size), "job.yaml");
  if (spec.ok()) return 0;
  for (const absl::string_view line : absl::StrSplit(spec.status().message(), '\n')) {
    CADRE_CHECK(absl::StrContains(line, "job.yaml"));
  }
  return 0;
}
