#include "bench/collectives/contestants.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"

namespace cadre {

std::vector<double> InChild(size_t measurements, const std::function<std::vector<double>()>& run) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) perror("fork");
  if (child == 0) {
    const std::vector<double> results = run();
    const ssize_t bytes = static_cast<ssize_t>(results.size() * sizeof(double));
    _exit(write(ends[1], results.data(), bytes) == bytes ? 0 : 1);
  }
  close(ends[1]);
  std::vector<double> results(measurements);
  const ssize_t wanted = static_cast<ssize_t>(measurements * sizeof(double));
  const bool complete = read(ends[0], results.data(), wanted) == wanted;
  close(ends[0]);
  if (child > 0) waitpid(child, nullptr, 0);
  if (!complete) results.clear();
  return results;
}

std::vector<double> RunProgram(const std::string& command,
                               const std::vector<Measurement>& schedule) {
  FILE* const output = popen(command.c_str(), "r");
  if (output == nullptr) return {};
  std::map<size_t, double> results;
  char line[256];
  while (fgets(line, sizeof(line), output) != nullptr) {
    size_t bytes = 0;
    double microseconds = 0;
    if (sscanf(line, "%zu %lf", &bytes, &microseconds) == 2) results[bytes] = microseconds;
  }
  const bool succeeded = pclose(output) == 0;
  std::vector<double> ordered;
  for (const Measurement& one : schedule) {
    const auto found = results.find(one.bytes);
    if (!succeeded || found == results.end()) {
      fprintf(stderr, "failed: %s\n", command.c_str());
      return {};
    }
    ordered.push_back(found->second);
  }
  return ordered;
}

std::vector<Contestant> BestOf(int passes,
                               const std::function<std::vector<Contestant>()>& run_once) {
  std::vector<Contestant> best = run_once();
  for (int pass = 1; pass < passes; ++pass) {
    const std::vector<Contestant> again = run_once();
    for (size_t i = 0; i < best.size(); ++i) {
      if (best[i].microseconds.empty()) best[i] = again[i];
      for (size_t k = 0; k < again[i].microseconds.size(); ++k) {
        best[i].microseconds[k] = std::min(best[i].microseconds[k], again[i].microseconds[k]);
      }
    }
  }
  return best;
}

std::string MessageSizeText(size_t bytes) {
  return bytes < (1 << 20) ? absl::StrCat(bytes >> 10, " KiB") : absl::StrCat(bytes >> 20, " MiB");
}

std::string LoadAverage() {
  std::ifstream file("/proc/loadavg");
  std::string one;
  file >> one;
  return one;
}

std::string BesideCaller(const std::string& name) {
  const char* const folder = getenv("BUILD_WORKING_DIRECTORY");
  return absl::StrCat(folder == nullptr ? "." : folder, "/", name);
}

}  // namespace cadre
