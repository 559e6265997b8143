#include "worker_runtime/shared_memory/call_lock.h"

#include <mutex>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace cadre::shared_memory {
namespace {

TEST(CallLockTest, ManyThreads_OneAtATime) {
  constexpr int kThreads = 4, kRounds = 20000;
  CallLock lock;
  int64_t sum = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        std::lock_guard<CallLock> held(lock);
        const int64_t before = sum;
        // Others get the core with the lock held, so that they sleep on it.
        if (round % 1000 == 0) std::this_thread::yield();
        sum = before + 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, int64_t{kThreads} * kRounds);
}

}  // namespace
}  // namespace cadre::shared_memory
