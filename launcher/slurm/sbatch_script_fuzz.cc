// A batch script: a job is made of it, or it is refused with one line that names it.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "launcher/slurm/sbatch_job.h"
#include "launcher/slurm/sbatch_options.h"
#include "launcher/spec/job_spec.h"
#include "tests/fuzz/fuzz_target.h"

namespace cadre::launcher {
namespace {

absl::Status MakeJob(absl::string_view script) {
  const absl::Status good = CheckBatchScript(script, "job.sh");
  std::vector<std::string> notices;
  const auto lines = ReadSbatchLines(script, "job.sh", &notices);
  if (!good.ok() || !lines.ok()) return good.ok() ? lines.status() : good;
  auto options = CombineSbatchOptions(*lines, {}, {});
  if (!options.ok()) return options.status();
  BatchSource source;
  source.script = std::string(script);
  source.name = "job.sh";
  source.program = {"/job.sh"};
  const auto spec = MakeBatchJob(source, {{}, "/", "host"}, *options);
  if (!spec.ok()) return spec.status();
  CADRE_CHECK(CheckUtf8Fields(*spec).ok());
  CADRE_CHECK(spec->nodes().min() > 0 && spec->workers_per_node().count() > 0);
  return absl::OkStatus();
}

}  // namespace
}  // namespace cadre::launcher

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::Status made = cadre::launcher::MakeJob(cadre::fuzz::Text(data, size));
  if (made.ok()) return 0;
  CADRE_CHECK(!absl::StrContains(made.message(), '\n'));
  CADRE_CHECK(absl::StrContains(made.message(), "job.sh"));
  return 0;
}
