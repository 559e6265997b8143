// Thirty minutes of faults: does anything leak? Ends with a table, and with 1 if something does.
//
//   bazel run //tests/soak -- [--minutes=30] [--every=5s] [--look-every=1m] [--seed=1]
#include <cstdio>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "tests/soak/soak.h"

namespace {

bool Read(absl::string_view argument, cadre::SoakOptions& options) {
  int64_t number = 0;
  if (absl::ConsumePrefix(&argument, "--minutes=")) {
    options.length = absl::SimpleAtoi(argument, &number) ? absl::Minutes(number) : absl::Minutes(0);
    return options.length > absl::ZeroDuration();
  }
  if (absl::ConsumePrefix(&argument, "--every=")) {
    return absl::ParseDuration(argument, &options.period) && options.period > absl::ZeroDuration();
  }
  if (absl::ConsumePrefix(&argument, "--look-every=")) {
    return absl::ParseDuration(argument, &options.measure_every) &&
           options.measure_every > absl::ZeroDuration();
  }
  if (absl::ConsumePrefix(&argument, "--seed=")) return absl::SimpleAtoi(argument, &options.seed);
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  cadre::SoakOptions options;
  for (int i = 1; i < argc; ++i) {
    if (Read(argv[i], options)) continue;
    std::fprintf(stderr, "soak: '%s'? [--minutes=30] [--every=5s] [--look-every=1m] [--seed=1]\n",
                 argv[i]);
    return 64;
  }
  const cadre::SoakReport report = cadre::RunSoak(options);
  std::printf("\n%s", report.table.c_str());
  for (const std::string& finding : report.findings) std::printf("FOUND: %s\n", finding.c_str());
  std::printf("%s\n", report.findings.empty() ? "nothing leaked" : "see what was FOUND above");
  return report.findings.empty() ? 0 : 1;
}
