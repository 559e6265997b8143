// A client that adds to a number in a server's store, again and again, while that server is killed
// and started again. Each sum must follow from the additions before it.
#ifndef CADRE_TESTS_FAULTS_COUNTED_ADDITIONS_H_
#define CADRE_TESTS_FAULTS_COUNTED_ADDITIONS_H_

#include <atomic>
#include <cstdint>
#include <random>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "tests/faults/mortal_server.h"

namespace cadre {

// It adds on a thread of its own; the methods are called by one thread.
class CountedAdditions {
 public:
  // Adds to a key of job "job", whose workers run. The server must outlive this object.
  explicit CountedAdditions(const MortalServer& server);
  ~CountedAdditions();

  // Returns at a random moment after some more additions were acknowledged.
  void AwaitAnyMoment();
  // Returns how many additions were acknowledged in all.
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
