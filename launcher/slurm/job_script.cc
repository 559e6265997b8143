#include "launcher/slurm/job_script.h"

#include <filesystem>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "launcher/slurm/batch_script.h"
#include "launcher/spec/reader.h"
#include "launcher/spec/scalars.h"

namespace cadre::launcher {

Flag RequeuesFlag() {
  return {"requeues", "N",
          "How often a Slurm job goes back into the queue when it is preempted [16]."};
}

absl::StatusOr<uint32_t> Requeues(const Parsed& parsed) {
  const auto given = parsed.Get("requeues");
  if (!given.has_value()) return BatchScriptOptions().requeues;
  absl::StatusOr<uint32_t> count = ParseCount(*given);
  if (count.ok()) return count;
  return absl::InvalidArgumentError(absl::StrCat("--requeues: ", count.status().message()));
}

absl::StatusOr<std::string> SlurmScript(const std::string& path, const v1::JobSpec& spec,
                                        uint32_t requeues) {
  BatchScriptOptions options;
  options.requeues = requeues;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) options.cadre = self.string();
  options.spec_path = std::filesystem::absolute(path, error).lexically_normal().string();
  if (error) return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.message()));
  absl::StatusOr<std::string> script = BatchScript(spec, options);
  if (script.ok()) return script;
  return SpecErrorAt(path, script.status().message());
}

}  // namespace cadre::launcher
