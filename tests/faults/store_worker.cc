// A worker that adds to a key of its own, again and again, and checks every sum: one addition lost
// or done twice, or one error, and it fails. It ends well once the file named on the command line
// is there, and says how long the longest addition took.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cadre/worker.h"

namespace cadre {
namespace {

Status Run(const std::string& done, bool aloud) {
  ASSIGN_OR_RETURN(auto worker, Worker::Connect());
  const int generation = static_cast<int>(worker->place().generation);
  std::printf("probe rank=%d generation=%d restarts=%d pid=%d world=%d at_ns=%lld\n",
              worker->rank(), generation, worker->place().restart_count, static_cast<int>(getpid()),
              worker->world_size(), static_cast<long long>(MonoNow().micros()) * 1000);
  std::fflush(stdout);
  const std::string key = absl::StrCat("count/", worker->rank());
  absl::Duration longest;
  int64_t count = 0;
  while (access(done.c_str(), F_OK) != 0) {
    const absl::Time begin = absl::Now();
    ASSIGN_OR_RETURN(const int64_t sum, worker->Add(key, 1));
    longest = std::max(longest, absl::Now() - begin);
    if (sum != ++count) {
      return DataLossError(absl::StrCat("addition ", count, " gave ", sum));
    }
    if (aloud) {
      std::printf("added generation=%d %d\n", generation, static_cast<int>(count));
      std::fflush(stdout);
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
  std::printf("store ok rank=%d additions=%d longest=%dms\n", worker->rank(),
              static_cast<int>(count), static_cast<int>(absl::ToInt64Milliseconds(longest)));
  return OkStatus();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) return EXIT_FAILURE;
  const cadre::Status status = cadre::Run(argv[1], argc == 3);
  if (status.ok()) return EXIT_SUCCESS;
  std::printf("store error: %s\n", status.ToString().c_str());
  return EXIT_FAILURE;
}
