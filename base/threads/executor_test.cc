#include "base/threads/executor.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

MonoTime Never() { return MonoTime::Never(); }

class ExecutorTest : public ::testing::Test {
 protected:
  Executor::Task Named(const std::string& name, bool anywhere = false, size_t bytes = 0) {
    return {[this, name] { ran_.push_back(name); }, anywhere, bytes};
  }
  void RunTaken() {
    for (Executor::Task& task : executor_.Take()) task.run();
  }

  std::vector<std::string> ran_;
  MonoTime due_ = Never();
  int woken_ = 0;
  Executor executor_{{[this] { return due_; }, [this] { ++woken_; }}};
};

TEST_F(ExecutorTest, APosterRunsItsTaskOnlyWhileTheLoopRestsAndNothingWaits) {
  EXPECT_FALSE(executor_.Enter()) << "the loop has the turn";
  executor_.Rest(Never());
  EXPECT_TRUE(executor_.Enter());
  EXPECT_FALSE(executor_.Enter()) << "somebody else is at it";
  executor_.Leave();
  EXPECT_TRUE(executor_.Enter());
  executor_.Leave();
  EXPECT_EQ(woken_, 0);
  EXPECT_TRUE(executor_.Add(Named("a")));
  EXPECT_EQ(woken_, 1);
  EXPECT_FALSE(executor_.Enter()) << "it would overtake";
  RunTaken();
  EXPECT_THAT(ran_, ElementsAre("a"));
  EXPECT_FALSE(executor_.Enter()) << "until the loop rests again";
}

TEST_F(ExecutorTest, WithoutAWordOnWhenTheLoopIsDueAllIsTheLoops) {
  Executor executor{{}};
  executor.Rest(Never());
  EXPECT_FALSE(executor.Enter());
}

TEST_F(ExecutorTest, WhatComesMeanwhileIsRunByThePosterUpToTheFirstTaskOfTheLoop) {
  executor_.Rest(Never());
  ASSERT_TRUE(executor_.Enter());
  EXPECT_TRUE(executor_.Add(Named("a", true, 1)));
  EXPECT_TRUE(executor_.Add(Named("b", false, 1)));
  EXPECT_TRUE(executor_.Add(Named("c", true, 1)));
  EXPECT_EQ(woken_, 0) << "who has the turn looks";
  executor_.Leave();
  EXPECT_THAT(ran_, ElementsAre("a"));
  EXPECT_EQ(woken_, 1);
  EXPECT_EQ(executor_.load().tasks, 2u);
  RunTaken();
  EXPECT_THAT(ran_, ElementsAre("a", "b", "c"));
  EXPECT_EQ(executor_.load().tasks, 0u);
}

TEST_F(ExecutorTest, TheLoopIsWokenWhenItIsDueBeforeTheEndOfItsRest) {
  executor_.Rest(MonoTime::FromMicros(100));
  due_ = MonoTime::FromMicros(100);
  ASSERT_TRUE(executor_.Enter());
  executor_.Leave();
  EXPECT_EQ(woken_, 0);
  ASSERT_TRUE(executor_.Enter());
  due_ = MonoTime::FromMicros(99);
  executor_.Leave();
  EXPECT_EQ(woken_, 1);
  EXPECT_FALSE(executor_.Enter()) << "the loop comes first";
  executor_.Await(Never());  // returns at once
  EXPECT_THAT(executor_.Take(), IsEmpty());
}

TEST_F(ExecutorTest, RoomIsCountedInTasksAndBytes_AndThoseOfNoBytesAlwaysFit) {
  const Executor::Load room = {2, 10};
  EXPECT_TRUE(executor_.Add(Named("a", false, 4), room));
  EXPECT_FALSE(executor_.Add(Named("b", false, 7), room));
  EXPECT_TRUE(executor_.Add(Named("c", false, 6), room));
  EXPECT_FALSE(executor_.Add(Named("d", false, 1), {2, 100}));
  EXPECT_TRUE(executor_.Add(Named("e"), room));
  EXPECT_EQ(executor_.load().bytes, 10u);
  RunTaken();
  EXPECT_THAT(ran_, ElementsAre("a", "c", "e"));
  EXPECT_EQ(executor_.load().bytes, 0u);
}

TEST_F(ExecutorTest, SeveralAreAddedAsFarAsThereIsRoom) {
  const auto three = [this] {
    std::vector<Executor::Task> tasks;
    tasks.push_back(Named("a", false, 1));
    tasks.push_back(Named("large", false, 10));
    tasks.push_back(Named("c", false, 1));
    return tasks;
  };
  EXPECT_FALSE(executor_.AddAll(three(), {3, 5}));
  RunTaken();
  EXPECT_THAT(ran_, ElementsAre("a")) << "nothing overtakes the one that found no room";
  EXPECT_TRUE(executor_.AddAll(three(), {3, 12}));
  EXPECT_EQ(executor_.load().tasks, 3u);
  executor_.Close();
  EXPECT_FALSE(executor_.AddAll(three(), {3, 12}));
}

TEST_F(ExecutorTest, AfterCloseNothingIsAdded) {
  EXPECT_TRUE(executor_.Add(Named("a", false, 1)));
  EXPECT_EQ(executor_.Close().size(), 1u);
  EXPECT_FALSE(executor_.Add(Named("b")));
  EXPECT_FALSE(executor_.has_tasks());
}

TEST_F(ExecutorTest, AwaitEndsAtItsTime) {
  const MonoTime before = MonoNow();
  executor_.Await(before + absl::Milliseconds(2));
  EXPECT_GE(MonoNow() - before, absl::Milliseconds(2));
}

TEST(ExecutorThreadsTest, OneTaskAtATimeAndNoneIsLost) {
  constexpr int kThreads = 4, kEach = 2000;
  int ran = 0;  // guarded by the executor alone
  Executor executor{{[] { return MonoTime::Never(); }, nullptr}};
  std::vector<std::thread> posters;
  for (int t = 0; t < kThreads; ++t) {
    posters.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        if (executor.Enter()) {
          ++ran;
          executor.Leave();
        } else {
          EXPECT_TRUE(executor.Add({[&] { ++ran; }, i % 2 == 0, 1}));
        }
      }
    });
  }
  // A task of the loop's tells it that all tasks have been posted.
  std::atomic<bool> all_posted{false};
  std::thread last([&] {
    for (std::thread& poster : posters) poster.join();
    executor.Add({[&] { all_posted = true; }});
  });
  while (!all_posted) {
    executor.Rest(MonoTime::Never());
    executor.Await(MonoTime::Never());
    for (Executor::Task& task : executor.Take()) task.run();
  }
  last.join();
  EXPECT_EQ(ran, kThreads * kEach);
}

}  // namespace
}  // namespace cadre
