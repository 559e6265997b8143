#include "base/threads/file_thread.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/scoped_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kPatience = absl::Seconds(20);

// A task that blocks, as on a file system that does not answer, until it is released.
class Standing {
 public:
  Standing() { EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0); }
  ~Standing() {
    close(ends_[0]);
    close(ends_[1]);
  }
  FileThread::Task task() const {
    return [fd = ends_[0]] {
      char byte = 0;
      EXPECT_EQ(read(fd, &byte, 1), 1);
    };
  }
  void LetGo() const { EXPECT_EQ(write(ends_[1], "g", 1), 1); }

 private:
  int ends_[2] = {-1, -1};
};

bool HasNews(const FileThread& thread, absl::Duration patience = kPatience) {
  pollfd ready = {thread.fd(), POLLIN, 0};
  return poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) == 1;
}

TEST(FileThreadTest, TasksRunInTheirOrder) {
  FileThread thread({});
  std::vector<int> done;
  for (int i = 0; i < 3; ++i) thread.Post([&done, i] { done.push_back(i); });
  ASSERT_TRUE(thread.Drain(kPatience));
  EXPECT_THAT(done, ElementsAre(0, 1, 2));
}

// No thread can be created because there is no address space for its stack.
TEST(FileThreadTest, WhereNoThreadIsToBeHadTasksWaitForTheNextOne) {
  pthread_attr_t before, huge;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 50), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  FileThread thread({});
  std::vector<int> done;
  thread.Post([&done] { done.push_back(0); });
  EXPECT_FALSE(thread.RunWithin(absl::Milliseconds(1), [&done] { done.push_back(1); }));
  ASSERT_EQ(pthread_setattr_default_np(&before), 0);
  EXPECT_TRUE(thread.RunWithin(kPatience, [&done] { done.push_back(2); }));
  EXPECT_THAT(done, ElementsAre(0, 1, 2));
  pthread_attr_destroy(&huge);
  pthread_attr_destroy(&before);
}

TEST(FileThreadTest, TellsOfTasksThatAreWaitedForAndOfNoOthers) {
  FileThread thread({});
  thread.Post([] {});
  ASSERT_TRUE(thread.Drain(kPatience));
  EXPECT_FALSE(HasNews(thread, absl::ZeroDuration()));
  thread.Post([] {}, 0, true);
  EXPECT_TRUE(HasNews(thread));
  thread.ClearReadable();
  EXPECT_FALSE(HasNews(thread, absl::ZeroDuration()));
}

TEST(FileThreadTest, NobodyWaitsForATaskThatStandsStill) {
  const Standing standing;
  FileThread thread({});
  EXPECT_EQ(thread.HungAt(), MonoTime::Never());
  thread.Post(standing.task());
  const MonoTime before = MonoNow();
  EXPECT_FALSE(thread.Drain(absl::ZeroDuration()));
  while (thread.HungAt() == MonoTime::Never()) {
  }
  EXPECT_GE(thread.HungAt(), before);
  EXPECT_FALSE(thread.IsHung(before));
  EXPECT_TRUE(thread.IsHung(MonoNow() + kFileTaskHungAfter));
  standing.LetGo();
  EXPECT_TRUE(thread.Drain(kPatience));
  EXPECT_EQ(thread.HungAt(), MonoTime::Never());
}

TEST(FileThreadTest, WhoCannotGoOnWithoutItWaitsSoLongAndNotLonger) {
  const auto standing = std::make_shared<Standing>();
  FileThread thread({});
  const auto done = std::make_shared<std::atomic<bool>>(false);
  EXPECT_TRUE(thread.RunWithin(kPatience, [done] { *done = true; }));
  EXPECT_TRUE(*done);
  EXPECT_EQ(thread.ResultWithin(kPatience, [] { return std::string("made"); }), "made");
  EXPECT_FALSE(thread.RunWithin(kFileTaskHungAfter, [standing] { standing->task()(); }));
  // The task may have started a little later than it was posted.
  while (!thread.IsHung(MonoNow())) {
  }
  const MonoTime before = MonoNow();
  EXPECT_FALSE(thread.RunWithin(kPatience, [] { ADD_FAILURE() << "it runs all the same"; }));
  EXPECT_EQ(thread.ResultWithin(kPatience, [] { return 1; }), std::nullopt);
  EXPECT_LT(MonoNow() - before, kPatience / 2);
  standing->LetGo();
  EXPECT_TRUE(thread.Drain(kPatience));
}

TEST(FileThreadTest, TellsWhenThereIsRoomAgain) {
  const Standing standing;
  FileThread thread({false, 100});
  thread.Post(standing.task(), 80);
  EXPECT_TRUE(thread.HasRoom(20));
  EXPECT_FALSE(thread.HasRoom(21));
  // A smaller request of another caller does not cancel the notification.
  EXPECT_TRUE(thread.HasRoom(1));
  EXPECT_FALSE(HasNews(thread, absl::ZeroDuration()));
  standing.LetGo();
  EXPECT_TRUE(HasNews(thread));
  EXPECT_TRUE(thread.HasRoom(100));
}

TEST(FileThreadTest, AnAbandonedTaskOwnsWhatItUses) {
  const auto standing = std::make_shared<Standing>();
  std::atomic<bool> ran{false};
  {
    FileThread thread({});
    thread.Post([standing] { standing->task()(); });
    thread.Post([&ran] { ran = true; });
  }
  EXPECT_FALSE(ran);
  standing->LetGo();
}

TEST(FileThreadTest, ItsDescriptorsAndUmaskAreItsOwn) {
  const ScopedFd ours(open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_GT(ours.get(), STDERR_FILENO);
  FileThread thread({true});
  bool has_ours = true, has_standard = false;
  thread.Post([&, fd = ours.get()] {
    has_ours = fcntl(fd, F_GETFD) >= 0;
    has_standard = fcntl(STDERR_FILENO, F_GETFD) >= 0;
    umask(0123);
    // It is never closed.
    dup2(STDERR_FILENO, 500);
  });
  ASSERT_TRUE(thread.Drain(kPatience));
  EXPECT_FALSE(has_ours);
  EXPECT_TRUE(has_standard);
  EXPECT_LT(fcntl(500, F_GETFD), 0);
  const mode_t mask = umask(022);
  umask(mask);
  EXPECT_NE(mask, mode_t{0123});
}

}  // namespace
}  // namespace cadre
