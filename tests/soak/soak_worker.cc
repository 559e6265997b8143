// A worker that trains nothing: a small all-reduce in each step, its sum checked, progress told,
// and now and then something asked of the store. It says where it is in a file, which the soak
// reads to find its process and to see that it goes on.
//
//   soak_worker STEPS_DIR DONE_FILE
//
// Ends well once DONE_FILE is there, all ranks at the same step.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "cadre/connect.h"
#include "cadre/wait_or_abort.h"
#include "cadre/worker.h"

namespace cadre {
namespace {

constexpr std::chrono::nanoseconds kTimeout = std::chrono::seconds(30);
constexpr size_t kElements = 4096;
constexpr int kStepsPerAddition = 10;
constexpr useconds_t kStepUs = 20000;

Status Run(const std::string& steps_dir, const std::string& done) {
  ASSIGN_OR_RETURN(auto worker, Worker::Connect());
  ASSIGN_OR_RETURN(auto communicator, ConnectCommunicator(*worker, {"world", kTimeout}));
  const std::string file = absl::StrCat(steps_dir, "/rank_", worker->rank());
  const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoToStatus(errno, absl::StrCat("cannot open ", file));
  const int world = worker->world_size();
  std::vector<float> values(kElements);
  for (int64_t step = 1;; ++step) {
    values.assign(kElements, 1.0f);
    // The last one says how many ranks saw that it is time to end.
    values.back() = access(done.c_str(), F_OK) == 0 ? 1.0f : 0.0f;
    RETURN_IF_ERROR(WaitOrAbort(*communicator,
                                communicator->AllReduce({values.data(), kElements}, ReduceOp::kSum),
                                kTimeout));
    if (values[0] != static_cast<float>(world)) {
      return DataLossError(absl::StrCat("the sum over ", world, " ranks is ", values[0]));
    }
    if (values.back() > 0) return OkStatus();
    worker->ReportProgress(step, /*samples_per_second=*/0, /*loss=*/0);
    if (step % kStepsPerAddition == 0) {
      RETURN_IF_ERROR(worker->Add(absl::StrCat("count/", worker->rank()), 1).status());
    }
    const std::string line =
        absl::StrFormat("%12u %12d %12d %12d\n", worker->place().generation, world, step, getpid());
    if (pwrite(fd, line.data(), line.size(), 0) != static_cast<ssize_t>(line.size())) {
      return ErrnoToStatus(errno, absl::StrCat("cannot write ", file));
    }
    usleep(kStepUs);
  }
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  if (argc != 3) return EXIT_FAILURE;
  const cadre::Status status = cadre::Run(argv[1], argv[2]);
  if (status.ok()) return EXIT_SUCCESS;
  std::fprintf(stderr, "soak_worker: %s\n", status.ToString().c_str());
  return EXIT_FAILURE;
}
