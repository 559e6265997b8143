// squeue: its options, and its table of jobs or steps. Pure.
#ifndef CADRE_LAUNCHER_SLURM_SQUEUE_TEXT_H_
#define CADRE_LAUNCHER_SLURM_SQUEUE_TEXT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launcher/slurm/job_record.h"

namespace cadre::launcher {

struct SqueueOptions {
  enum class Answer { kNone, kHelp, kVersion };
  Answer answer = Answer::kNone;
  // Without states those that have not ended.
  JobSelection selection;
  // The users as they were given, names or numbers; and whether the user of this process is one.
  std::vector<std::string> users;
  bool me = false;
  bool header = true;
  bool long_list = false;
  bool steps = false;
  // Each element of an array that waits has a line of its own.
  bool array_elements = false;
  bool json = false;
  // As for -o, or as for -O if `long_format`.
  std::string format;
  bool long_format = false;
  // As for -S; empty: by state and priority.
  std::string sort;
  // 0: once.
  uint32_t every_seconds = 0;
};

// INVALID_ARGUMENT: the message follows "squeue: ".
absl::StatusOr<SqueueOptions> ReadSqueue(const std::vector<std::string>& arguments,
                                         const std::map<std::string, std::string>& environment);

// What texts about records depend on besides them.
struct TextSurroundings {
  absl::Time now;
  absl::TimeZone zone;
  // SLURM_TIME_FORMAT.
  std::string time_format;
  // The number of a user; nullopt: this machine does not know the user.
  std::function<std::optional<uint32_t>(const std::string& user)> uid_of;
};

// The table, or with --json the JSON. INVALID_ARGUMENT: the format or the order has a field that is
// not known.
absl::StatusOr<std::string> SqueueText(const std::vector<JobRecord>& records,
                                       const SqueueOptions& options, const TextSurroundings& at);

std::string SqueueHelp();

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_SQUEUE_TEXT_H_
