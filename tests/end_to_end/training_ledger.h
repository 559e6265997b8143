// The MNIST example in a job that recovers in place, and the ledgers that its workers write: which
// worker did which step with which samples.
#ifndef CADRE_TESTS_END_TO_END_TRAINING_LEDGER_H_
#define CADRE_TESTS_END_TO_END_TRAINING_LEDGER_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/time.h"

namespace cadre {

inline constexpr absl::Duration kTraining = absl::Minutes(4);

// One line of a ledger.
struct Entry {
  pid_t pid = 0;
  bool done = false;  // else: take
  int generation = 0;
  int rank = 0;
  int world = 0;
  int epoch = 0;
  int step = 0;
  int64_t at_us = 0;
  std::vector<int> samples;
};

// Returns what all processes have written so far.
std::vector<Entry> ReadLedgers(const std::string& directory);

// Waits until `holds` is true for what is written, for kTraining at most.
bool AwaitLedger(const std::string& directory,
                 const std::function<bool(const std::vector<Entry>&)>& holds);

int DoneSteps(const std::vector<Entry>& entries, int generation, int world);

// Returns the process of each rank of a generation.
std::map<int, pid_t> Pids(const std::vector<Entry>& entries, int generation);

// Returns the steps that were begun in more than one generation.
std::set<int> RepeatedSteps(const std::vector<Entry>& entries);

absl::Duration FirstStepAfter(const std::vector<Entry>& entries, int generation, MonoTime since);

// Expects that every epoch has every sample once. A step counts in the last generation that began
// it.
void ExpectEachSampleOnce(const std::vector<Entry>& entries, int epochs);

// Arguments of `cadre run`: `flags`, and the program with this ledger.
std::vector<std::string> Training(std::vector<std::string> flags, const std::string& ledgers,
                                  int epochs, const std::vector<std::string>& wrapper = {});

}  // namespace cadre

#endif  // CADRE_TESTS_END_TO_END_TRAINING_LEDGER_H_
