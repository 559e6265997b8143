// The output of `scontrol show job`.
#include "launcher/slurm/slurm_commands.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto job = cadre::launcher::ParseSlurmJob(cadre::fuzz::Text(data, size));
  if (!job.ok()) return 0;
  cadre::launcher::HasEnded(*job);
  cadre::launcher::ExitStatusOf(*job);
  return 0;
}
