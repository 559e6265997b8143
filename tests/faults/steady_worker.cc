// A worker that goes through steps with all others, by way of the store: an addition of its own,
// which it checks, a word from rank 0, a barrier. Beside that it writes "beat N" a hundred times a
// second, whatever becomes of the steps. It ends well after the step in which rank 0 has found the
// file "done" in the directory named on the command line, and with 7 as soon as "die.<rank>" is
// there.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "cadre/worker.h"

namespace cadre {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(10);
constexpr std::chrono::nanoseconds kTimeout = std::chrono::minutes(1);
constexpr int kToldToDie = 7;

void Beat(const std::string& die, const std::atomic<bool>& over) {
  for (int beat = 0; !over; ++beat) {
    if (access(die.c_str(), F_OK) == 0) {
      std::fprintf(stderr, "told to die\n");
      _exit(kToldToDie);
    }
    std::printf("beat %d\n", beat);
    std::fflush(stdout);
    absl::SleepFor(kPause);
  }
}

Status Steps(Worker& worker, const std::string& directory) {
  const std::string done = directory + "/done";
  for (int64_t step = 1;; ++step) {
    ASSIGN_OR_RETURN(const int64_t sum, worker.Add(absl::StrCat("count/", worker.rank()), 1));
    if (sum != step) {
      return DataLossError(absl::StrCat("addition ", step, " gave ", sum));
    }
    const std::string key = absl::StrCat("step/", step);
    std::string word = access(done.c_str(), F_OK) == 0 ? "end" : "go";
    if (worker.rank() == 0) {
      RETURN_IF_ERROR(worker.Set(key, word));
    } else {
      ASSIGN_OR_RETURN(word, worker.Get(key, kTimeout));
    }
    RETURN_IF_ERROR(worker.Barrier(key, kTimeout));
    std::printf("step %d\n", static_cast<int>(step));
    std::fflush(stdout);
    if (word == "end") return OkStatus();
    absl::SleepFor(kPause);
  }
}

Status Run(const std::string& directory) {
  ASSIGN_OR_RETURN(auto worker, Worker::Connect());
  std::printf("probe rank=%d generation=%d restarts=%d pid=%d world=%d\n", worker->rank(),
              static_cast<int>(worker->place().generation), worker->place().restart_count,
              static_cast<int>(getpid()), worker->world_size());
  std::fflush(stdout);
  std::atomic<bool> over{false};
  const std::string die = absl::StrCat(directory, "/die.", worker->rank());
  std::thread beat([&] { Beat(die, over); });
  const Status status = Steps(*worker, directory);
  over = true;
  beat.join();
  return status;
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  if (argc != 2) return EXIT_FAILURE;
  const cadre::Status status = cadre::Run(argv[1]);
  if (status.ok()) return EXIT_SUCCESS;
  std::printf("error: %s\n", status.ToString().c_str());
  return EXIT_FAILURE;
}
