#include "bench/scale/process_cost.h"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace cadre {

absl::StatusOr<ProcessCost> CostOf(int process) {
  ProcessCost cost;
  std::ifstream status(absl::StrCat("/proc/", process, "/status"));
  std::string line;
  while (std::getline(status, line)) {
    std::istringstream words(line);
    std::string name;
    int64_t value = 0;
    words >> name >> value;
    if (name == "VmRSS:") cost.resident_bytes = value * 1024;
    if (name == "VmHWM:") cost.peak_bytes = value * 1024;
    if (name == "Threads:") cost.threads = value;
  }
  std::ifstream stat(absl::StrCat("/proc/", process, "/stat"));
  std::getline(stat, line);
  const size_t after_name = line.rfind(')');
  if (cost.threads == 0 || after_name == std::string::npos) {
    return absl::NotFoundError(absl::StrCat("there is no process ", process));
  }
  std::istringstream fields(line.substr(after_name + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  int64_t user = 0, system = 0;
  fields >> user >> system;
  cost.processor = absl::Seconds(user + system) / sysconf(_SC_CLK_TCK);
  return cost;
}

}  // namespace cadre
