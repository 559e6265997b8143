// Makes the creation of threads fail in this process.
#ifndef CADRE_WORKER_RUNTIME_TESTING_NO_THREADS_H_
#define CADRE_WORKER_RUNTIME_TESTING_NO_THREADS_H_

#include <pthread.h>

#include <cstddef>

#include "gtest/gtest.h"

namespace cadre::testing {

// While the object lives, every std::thread or pthread with default attributes fails with EAGAIN,
// because its stack would not fit into any address space. A process limit has the same effect, but
// does not apply to root.
class NoThreads {
 public:
  NoThreads() {
    EXPECT_EQ(pthread_getattr_default_np(&before_), 0);
    pthread_attr_t huge;
    EXPECT_EQ(pthread_attr_init(&huge), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 60), 0);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    EXPECT_EQ(pthread_setattr_default_np(&before_), 0);
    pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace cadre::testing

#endif  // CADRE_WORKER_RUNTIME_TESTING_NO_THREADS_H_
