#include "cadre/work.h"

#include <memory>

#include "base/status_matchers.h"
#include "cadre.h"
#include "cadre/communicator.h"
#include "worker_runtime/c/handles.h"

namespace cadre::c {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLongMs = 60000;

// An abort fails the one work that it has.
class OneWorkCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::shared_ptr<Work> AllReduce(Buffer, Reduction) override { return Barrier(); }
  std::shared_ptr<Work> Broadcast(Buffer, int) override { return Barrier(); }
  std::shared_ptr<Work> AllGather(Buffer, Buffer) override { return Barrier(); }
  std::shared_ptr<Work> Barrier() override { return work_; }
  void Abort() override { work_->Complete(AbortedError("as it was told"), {}); }

 private:
  const std::shared_ptr<Work> work_ = std::make_shared<Work>();
};

class CWorkTest : public ::testing::Test {
 protected:
  CWorkTest() { EXPECT_EQ(cadre_barrier(&communicator_, &work_), CADRE_OK); }
  ~CWorkTest() override { cadre_work_free(work_); }

  cadre_communicator communicator_{std::make_unique<OneWorkCommunicator>()};
  cadre_work* work_ = nullptr;
};

TEST_F(CWorkTest, NotYet_ThenDone_AsOftenAsAsked) {
  EXPECT_EQ(cadre_work_done(work_), 0);
  EXPECT_EQ(cadre_work_wait(work_, 0), CADRE_DEADLINE_EXCEEDED);
  work_->work->Complete(UnavailableError("rank 1 is gone"), {});
  EXPECT_EQ(cadre_work_done(work_), 1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(cadre_work_wait(work_, kLongMs), CADRE_UNAVAILABLE);
    EXPECT_STREQ(cadre_last_error(), "rank 1 is gone");
  }
}

TEST_F(CWorkTest, WaitOrAbort_SaysWhatWentWrongFirst_AndLeavesNothingRunning) {
  EXPECT_EQ(cadre_work_wait_or_abort(work_, &communicator_, 1), CADRE_DEADLINE_EXCEEDED);
  EXPECT_THAT(cadre_last_error(), HasSubstr("not done"));
  EXPECT_EQ(cadre_work_done(work_), 1);
  EXPECT_EQ(cadre_work_wait(work_, 0), CADRE_ABORTED);
}

TEST_F(CWorkTest, Errors) {
  EXPECT_EQ(cadre_work_wait(work_, -1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_work_wait(nullptr, 0), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_work_wait_or_abort(nullptr, &communicator_, 0), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_work_wait_or_abort(work_, nullptr, 0), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_work_wait_or_abort(work_, &communicator_, -1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_work_done(work_), 0) << "what was refused aborts nothing";
  EXPECT_EQ(cadre_work_done(nullptr), -1);
  cadre_work_free(nullptr);
}

}  // namespace
}  // namespace cadre::c
