#include "worker_runtime/memory/node_memory.h"

#include <string>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::memory {
namespace {

// Records the first notice.
struct Heard {
  AbsenceNoticeOptions Options() {
    AbsenceNoticeOptions options;
    options.first = options.every = std::chrono::milliseconds(1);
    options.say = [this](const std::string& what) {
      if (said.HasBeenNotified()) return;
      absent = what;
      said.Notify();
    };
    return options;
  }
  std::string Wait() {
    EXPECT_TRUE(said.WaitForNotificationWithTimeout(absl::Seconds(30)));
    return absent;
  }

  std::string absent;
  absl::Notification said;
};

TEST(AbsenceNotice, OneOfThoseThatAreThereNamesTheOthers) {
  testing::InProcessWorkers workers(6);
  Heard of_3, of_1;
  const AbsenceNotice three(workers.worker(3), "latest/1", of_3.Options());
  EXPECT_EQ(of_3.Wait(), "ranks 0, 1, 2 and 2 more");
  const AbsenceNotice one(workers.worker(1), "latest/1", of_1.Options());
  EXPECT_EQ(of_1.Wait(), "ranks 0, 2, 4 and 1 more");
  EXPECT_EQ(AbsentRanks(workers.worker(1), "latest/1"), "ranks 0, 2, 4 and 1 more");
  EXPECT_EQ(AbsentRanks(workers.worker(3), "latest/1"), "");
}

TEST(AbsenceNotice, NamesOneThatIsOnlyInTheCallBefore) {
  testing::InProcessWorkers workers(2);
  Heard heard, unheard;
  const AbsenceNotice before(workers.worker(1), "latest/1", unheard.Options());
  const AbsenceNotice waits(workers.worker(0), "latest/2", heard.Options());
  EXPECT_EQ(heard.Wait(), "rank 1");
}

TEST(AbsenceNotice, NobodyIsNamedWhereAllAreThere) {
  testing::InProcessWorkers workers(3);
  workers.Run([](Worker& worker) { const AbsenceNotice notice(worker, "latest/1", {}); });
  workers.Run([](Worker& worker) { EXPECT_EQ(AbsentRanks(worker, "latest/1"), ""); });
  workers.Run([](Worker& worker) {
    EXPECT_EQ(AbsentRanks(worker, "latest/2"), worker.rank() == 0   ? "ranks 1, 2"
                                               : worker.rank() == 1 ? "ranks 0, 2"
                                                                    : "ranks 0, 1");
  });
}

}  // namespace

}  // namespace cadre::memory
