// Additions to a number in a server's store, one after the other, while that server is lost and
// comes back: each sum must be what the ones before it make.
#ifndef CADRE_TESTS_FAULTS_COUNTED_ADDITIONS_H_
#define CADRE_TESTS_FAULTS_COUNTED_ADDITIONS_H_

#include <atomic>
#include <cstdint>
#include <random>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "tests/faults/mortal_server.h"

namespace cadre {

// Adds on a thread of its own. Everything else from one thread.
class CountedAdditions {
 public:
  // To job "job", whose workers run. The server outlives it.
  explicit CountedAdditions(const MortalServer& server);
  ~CountedAdditions();

  // Returns at any moment soon after some more were acknowledged.
  void AwaitAnyMoment();
  // How many were acknowledged in all.
  int64_t Stop();

 private:
  void Add();

  StoreClient client_;
  std::minstd_rand random_{1};
  std::atomic<bool> stop_{false};
  absl::Mutex mutex_;
  int64_t acknowledged_ = 0;
  std::thread adder_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_FAULTS_COUNTED_ADDITIONS_H_
