// Files that record which rank took which samples in which step. They show that each sample of an
// epoch is seen once, whatever happens to the workers meanwhile.
#ifndef CADRE_EXAMPLES_MNIST_CNN_LEDGER_H_
#define CADRE_EXAMPLES_MNIST_CNN_LEDGER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/worker.h"

namespace cadre::mnist {

// Each line is written at once, so that it survives even if the process is killed next. One thread.
class Ledger {
 public:
  // Appends to `directory`/<pid>-<random digits>; with an empty directory nothing is written.
  static Result<Ledger> Open(const std::string& directory);
  ~Ledger();
  Ledger(Ledger&& other) noexcept;
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // Writes "take generation=2 rank=1 world=4 epoch=0 step=7 at_us=123 samples=3,5,9". A step that
  // is taken in several generations counts in the last of them.
  Status Take(const WorkerPlace& place, int64_t epoch, int64_t step,
              const std::vector<int64_t>& samples) const;
  // Writes "done generation=2 rank=1 step=7 at_us=123": the step's gradients were applied. Times
  // are the machine's monotonic clock.
  Status Done(const WorkerPlace& place, int64_t step) const;

 private:
  Ledger(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status Append(const std::string& line) const;

  std::string path_;
  int fd_ = -1;
};

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_LEDGER_H_
