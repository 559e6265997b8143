// The text that workers of a goodput run write, and its reader. Two files, to which all
// of them append whole lines:
//
//   DIR/steps    STEP NS               rank 0 finished this step
//   DIR/events   PID RANK EVENT NS     main, connected, resumed, stepped (the first step)
//
// NS is of the machine's CLOCK_MONOTONIC. goodput_step.py writes the same.
#ifndef CADRE_BENCH_GOODPUT_LEDGER_H_
#define CADRE_BENCH_GOODPUT_LEDGER_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/time.h"

namespace cadre::bench {

// A worker's end. One thread. A line that cannot be written is lost.
class Ledger {
 public:
  static absl::StatusOr<Ledger> Open(const std::string& dir);
  Ledger(Ledger&& other) noexcept;
  Ledger& operator=(Ledger&&) = delete;
  ~Ledger();

  void Step(int64_t step);
  void Event(int rank, absl::string_view event);

 private:
  Ledger() = default;

  int steps_ = -1;
  int events_ = -1;
};

struct FinishedStep {
  int64_t step = 0;
  MonoTime at;
};
struct WorkerEvent {
  pid_t pid = 0;
  int rank = 0;
  std::string event;
  MonoTime at;
};

// In the order of the file; a last line that is not whole is left out.
std::vector<FinishedStep> ReadSteps(const std::string& dir);
std::vector<WorkerEvent> ReadEvents(const std::string& dir);

// The consequences of one kill.
struct Recovery {
  // Of steps that were finished before and had to be done again.
  int64_t redone = 0;
  // From the kill to the end of the first step after it, which may repeat work
  // where steps were redone; InfiniteDuration: there was none before `until`.
  absl::Duration to_first_step;
  // Of the slowest process: from the kill to when it had done this. Zero: none did.
  absl::Duration to_main, to_connected, to_resumed;
};
Recovery RecoveryFrom(MonoTime kill, MonoTime until, const std::vector<FinishedStep>& steps,
                      const std::vector<WorkerEvent>& events);

// The furthest step finished by `at`; 0: none was.
int64_t FurthestStep(const std::vector<FinishedStep>& steps, MonoTime at);

}  // namespace cadre::bench

#endif  // CADRE_BENCH_GOODPUT_LEDGER_H_
