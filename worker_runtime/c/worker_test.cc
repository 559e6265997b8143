#include <stdlib.h>

#include <atomic>
#include <new>
#include <string>
#include <string_view>

#include "base/status_matchers.h"
#include "cadre.h"
#include "worker_runtime/c/borrowed_worker.h"
#include "worker_runtime/c/handles.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::c {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLongMs = 60000;

// Says what a worker was told, and does not know each call.
class TellTaleWorker : public store::GroupWorker {
 public:
  explicit TellTaleWorker(Worker& worker) : GroupWorker(&worker, "tale", worker.place()) {}

  Status Barrier(std::string_view, std::chrono::nanoseconds) override { throw std::bad_alloc(); }
  bool MoreNodesWait() const override { throw "no exception of the standard library's"; }
  void ReportProgress(int64_t step, double samples_per_second, double loss) override {
    EXPECT_EQ(samples_per_second, 12.5);
    EXPECT_EQ(loss, 0.25);
    reported_step = step;
  }

  int64_t reported_step = -1;
};

TEST(CWorkerTest, NotStartedAsAWorker_SaysSo) {
  unsetenv("CADRE_AGENT");
  int marker = 0;
  auto* worker = reinterpret_cast<cadre_worker*>(&marker);
  EXPECT_EQ(cadre_worker_connect(&worker), CADRE_FAILED_PRECONDITION);
  EXPECT_THAT(cadre_last_error(), HasSubstr("cadre run"));
  EXPECT_EQ(worker, nullptr);
  EXPECT_EQ(cadre_worker_connect(nullptr), CADRE_INVALID_ARGUMENT);
}

TEST(CWorkerTest, WhoSaysItsRankItself) {
  cadre_worker* worker = nullptr;
  ASSERT_EQ(cadre_worker_connect_at(0, 1, "127.0.0.1:1", kLongMs, &worker), CADRE_OK)
      << cadre_last_error();
  EXPECT_EQ(cadre_worker_rank(worker), 0);
  EXPECT_EQ(cadre_worker_world_size(worker), 1);
  cadre_worker_free(worker);
  EXPECT_EQ(cadre_worker_connect_at(0, 1, "nowhere", kLongMs, &worker), CADRE_INVALID_ARGUMENT);
  EXPECT_THAT(cadre_last_error(), HasSubstr("HOST:PORT"));
  EXPECT_EQ(worker, nullptr);
  EXPECT_EQ(cadre_worker_connect_at(2, 2, "h:1", kLongMs, &worker), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_worker_connect_at(0, 1, "h:1", -1, &worker), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_worker_connect_at(0, 1, nullptr, kLongMs, &worker), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_worker_connect_at(0, 1, "h:1", kLongMs, nullptr), CADRE_INVALID_ARGUMENT);
}

TEST(CWorkerTest, Place) {
  testing::InProcessWorkers workers(5, 2);
  const cadre_worker worker = Borrowed(workers.worker(3));
  EXPECT_EQ(cadre_worker_rank(&worker), 3);
  EXPECT_EQ(cadre_worker_world_size(&worker), 5);
  EXPECT_EQ(cadre_worker_local_rank(&worker), 1);
  EXPECT_EQ(cadre_worker_node_rank(&worker), 1);
  EXPECT_EQ(cadre_worker_restart_count(&worker), 0);
  EXPECT_EQ(cadre_worker_generation(&worker), 1);
  EXPECT_STREQ(cadre_worker_job(&worker), "in_process");
}

TEST(CWorkerTest, ANullWorkerHasNoPlace) {
  EXPECT_EQ(cadre_worker_rank(nullptr), -1);
  EXPECT_EQ(cadre_worker_world_size(nullptr), -1);
  EXPECT_EQ(cadre_worker_local_rank(nullptr), -1);
  EXPECT_EQ(cadre_worker_node_rank(nullptr), -1);
  EXPECT_EQ(cadre_worker_restart_count(nullptr), -1);
  EXPECT_EQ(cadre_worker_generation(nullptr), -1);
  EXPECT_STREQ(cadre_worker_job(nullptr), "");
  EXPECT_THAT(cadre_last_error(), HasSubstr("worker is NULL"));
  cadre_worker_free(nullptr);
}

TEST(CWorkerTest, BarrierWaitsForAll) {
  testing::InProcessWorkers workers(3);
  std::atomic<int> came{0};
  workers.Run([&](Worker& one) {
    cadre_worker worker = Borrowed(one);
    ++came;
    EXPECT_EQ(cadre_worker_barrier(&worker, "all", kLongMs), CADRE_OK);
    EXPECT_EQ(came, 3);
  });
}

TEST(CWorkerTest, BarrierErrors) {
  testing::InProcessWorkers workers(2);
  cadre_worker worker = Borrowed(workers.worker(0));
  EXPECT_EQ(cadre_worker_barrier(&worker, "alone", 1), CADRE_DEADLINE_EXCEEDED);
  EXPECT_THAT(cadre_last_error(), HasSubstr("alone"));
  EXPECT_EQ(cadre_worker_barrier(nullptr, "alone", 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_worker_barrier(&worker, nullptr, 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_worker_barrier(&worker, "alone", -1), CADRE_INVALID_ARGUMENT);
  workers.EndGeneration();
  EXPECT_EQ(cadre_worker_barrier(&worker, "alone", kLongMs), CADRE_ABORTED);
  EXPECT_THAT(cadre_last_error(), HasSubstr("generation"));
}

TEST(CWorkerTest, ProgressGoesToTheLauncher) {
  testing::InProcessWorkers workers(1);
  auto told = std::make_unique<TellTaleWorker>(workers.worker(0));
  const TellTaleWorker& tale = *told;
  cadre_worker worker{std::move(told)};
  EXPECT_EQ(cadre_worker_report_progress(&worker, 418, 12.5, 0.25), CADRE_OK);
  EXPECT_EQ(tale.reported_step, 418);
  EXPECT_EQ(cadre_worker_report_progress(nullptr, 1, 1, 1), CADRE_INVALID_ARGUMENT);
}

TEST(CWorkerTest, CheckpointWantedIsOneAnswerForAll) {
  testing::InProcessWorkers workers(2);
  workers.Run([&](Worker& one) {
    cadre_worker worker = Borrowed(one);
    int wanted = 7;
    EXPECT_EQ(cadre_checkpoint_wanted(&worker, kLongMs, &wanted), CADRE_OK) << cadre_last_error();
    EXPECT_EQ(wanted, 0);
  });
}

TEST(CWorkerTest, CheckpointWantedErrors) {
  testing::InProcessWorkers workers(2);
  cadre_worker worker = Borrowed(workers.worker(1));
  int wanted = 7;
  EXPECT_EQ(cadre_checkpoint_wanted(&worker, 1, &wanted), CADRE_DEADLINE_EXCEEDED);
  EXPECT_EQ(cadre_checkpoint_wanted(nullptr, 1, &wanted), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_checkpoint_wanted(&worker, 1, nullptr), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_checkpoint_wanted(&worker, -1, &wanted), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(wanted, 7);
}

TEST(CWorkerTest, WhatTheRuntimeThrowsStaysInside) {
  testing::InProcessWorkers workers(1);
  cadre_worker worker{std::make_unique<TellTaleWorker>(workers.worker(0))};
  EXPECT_EQ(cadre_worker_barrier(&worker, "all", kLongMs), CADRE_RESOURCE_EXHAUSTED);
  int wanted = 7;
  EXPECT_EQ(cadre_checkpoint_wanted(&worker, kLongMs, &wanted), CADRE_INTERNAL);
}

}  // namespace
}  // namespace cadre::c
