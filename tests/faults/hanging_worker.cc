// A worker that trains nothing in small steps, and on request hangs at one of them in one of the
// ways in which programs hang.
//
//   hanging_worker --how stop|loop|deadlock --rank R [--plain] [--steps N]
//
// Rank R of the first generation hangs in step 20: stopped by SIGSTOP, in an endless loop, or in a
// barrier that nobody else enters while the others are in an all-reduce. It says `hangs now
// at_ns=...` (the machine's monotonic clock) first. --plain: without the worker runtime's reducer;
// the others wait in a barrier and only lines on CADRE_PROGRESS_FD tell how far each is.
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "cadre/connect.h"
#include "cadre/reducer.h"
#include "cadre/worker.h"

namespace cadre {
namespace {

constexpr int kHangsAtStep = 20;
// Longer than any test.
constexpr std::chrono::nanoseconds kForever = std::chrono::minutes(30);
constexpr useconds_t kStepUs = 10000;

struct Orders {
  std::string how;
  int rank = -1;
  int steps = 40;
  bool plain = false;
};

void Hang(const Orders& orders, Worker& worker) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  std::printf("hangs now at_ns=%lld\n",
              static_cast<long long>(now.tv_sec) * 1000000000 + now.tv_nsec);
  std::fflush(stdout);
  if (orders.how == "stop") raise(SIGSTOP);
  if (orders.how == "deadlock") (void)worker.Barrier("nobody else", kForever);
  for (volatile uint64_t turns = 0; orders.how == "loop";) turns = turns + 1;
}

Status Run(const Orders& orders) {
  ASSIGN_OR_RETURN(auto worker, Worker::Connect());
  const bool hangs = worker->rank() == orders.rank && worker->place().generation == 1;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Reducer> reducer;
  std::vector<float> parameter(256);
  if (!orders.plain) {
    ASSIGN_OR_RETURN(communicator, ConnectCommunicator(*worker, {"world", kForever}));
    const std::vector<Parameter> parameters = {{"p", {parameter.data(), parameter.size()}, {256}}};
    ASSIGN_OR_RETURN(reducer, Reducer::Create(*communicator, parameters, {}));
  }
  for (int step = 1; step <= orders.steps; ++step) {
    if (reducer != nullptr) RETURN_IF_ERROR(reducer->BeginStep());
    usleep(kStepUs);
    if (hangs && step == kHangsAtStep) Hang(orders, *worker);
    if (reducer != nullptr) {
      RETURN_IF_ERROR(reducer->MarkReady(0));
      RETURN_IF_ERROR(reducer->Finish(kForever).status());
    } else {
      RETURN_IF_ERROR(worker->Barrier(absl::StrCat("step ", step), kForever));
    }
    worker->ReportProgress(step, 100, 1.0 / step);
  }
  std::printf("done rank=%d\n", worker->rank());
  return OkStatus();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  cadre::Orders orders;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--plain") {
      orders.plain = true;
      continue;
    }
    if (name == "--how") orders.how = value;
    if (name == "--rank") orders.rank = std::atoi(value);
    if (name == "--steps") orders.steps = std::atoi(value);
    ++i;
  }
  const cadre::Status status = cadre::Run(orders);
  if (!status.ok()) std::fprintf(stderr, "hanging_worker: %s\n", status.ToString().c_str());
  return status.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}
