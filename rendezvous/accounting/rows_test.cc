#include "rendezvous/accounting/rows.h"

#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/state/apply.h"

namespace cadre::accounting {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kSecond = 1000000;
constexpr RowOrigin kOrigin = {77, 1000000};

// Builds the state of a job "train" of alice from records. Times are in seconds.
class RowsTest : public testing::Test {
 protected:
  RowsTest() {
    v1::Record record = Train();
    saved::Job* job = record.mutable_job_created()->mutable_job();
    job->mutable_spec()->set_name("train");
    job->mutable_spec()->add_command("./train");
    job->mutable_spec()->add_command("--lr=1");
    job->set_phase(v1::QUEUED);
    job->mutable_times()->set_created_us(kSecond);
    job->mutable_times()->set_submitted_us(kSecond);
    job->mutable_submission()->set_user("alice");
    job->mutable_submission()->set_order(5);
    Apply(record);
  }

  static v1::Record Train() {
    v1::Record record;
    record.set_job("train");
    return record;
  }
  void Apply(const v1::Record& record) { state::Apply(record, &state_); }
  state::Job& job() { return state_.jobs.at("train"); }

  v1::Record Placed(uint64_t id, const std::string& node, int64_t at) {
    v1::Record record;
    v1::PartPlaced* placed = record.mutable_part_placed();
    placed->mutable_part()->set_id(id);
    placed->mutable_part()->set_job("train");
    placed->mutable_part()->set_node(node);
    placed->mutable_part()->set_workers(2);
    placed->mutable_part()->set_cpus(4);
    placed->mutable_part()->set_gpus(2);
    placed->mutable_part()->set_memory(1 << 20);
    placed->set_at_us(at * kSecond);
    placed->set_leaves_queue(job().phase() == v1::QUEUED);
    return record;
  }
  static v1::Record PartEnded(uint64_t id, int64_t at) {
    v1::Record record;
    record.mutable_part_ended()->set_id(id);
    record.mutable_part_ended()->set_at_us(at * kSecond);
    return record;
  }
  static v1::Record Ended(v1::JobPhase outcome, v1::FailureCause cause, int64_t at) {
    v1::Record record = Train();
    record.mutable_job_ended()->set_at_us(at * kSecond);
    v1::Verdict* verdict = record.mutable_job_ended()->mutable_verdict();
    verdict->set_outcome(outcome);
    verdict->set_message("why");
    if (cause != v1::FAILURE_CAUSE_UNSPECIFIED) verdict->mutable_root_cause()->set_cause(cause);
    return record;
  }
  // Times in seconds since the job was created; 0: not reached.
  v1::GenerationTimeline* AddGeneration(uint64_t number, int64_t gathering, int64_t running,
                                        int64_t failed, int64_t stopped) {
    v1::GenerationTimeline* one = job().saved.mutable_timeline()->add_generations();
    one->set_generation(number);
    one->set_nodes(2);
    one->set_world_size(4);
    one->set_gathering_us(gathering * kSecond);
    one->set_running_us(running * kSecond);
    one->set_failed_us(failed * kSecond);
    one->set_stopped_us(stopped * kSecond);
    return one;
  }
  void AddFailure(uint64_t generation, v1::FailureCause cause) {
    v1::Failure* failure = job().saved.add_earlier();
    failure->set_generation(generation);
    failure->set_cause(cause);
  }
  // Two nodes from second 10 on, which is when the job is created.
  void Begin() {
    Apply(Placed(1, "a", 10));
    Apply(Placed(2, "b", 10));
  }
  v1::AccountedJob Row() { return RowOf(job(), state_.cluster, kOrigin); }

  state::State state_;
};

TEST_F(RowsTest, AJobsTimesAreThoseOfItsAllocationsUntilItsLaunchersHaveEnded) {
  Begin();
  AddGeneration(1, 0, 2, 0, 90);
  Apply(Ended(v1::SUCCEEDED, v1::FAILURE_CAUSE_UNSPECIFIED, 100));
  v1::AccountedJob row = Row();
  EXPECT_TRUE(row.holds_nodes());
  EXPECT_EQ(row.held_us(), 180 * kSecond);
  EXPECT_EQ(row.memory(), 2u << 20);
  Apply(PartEnded(1, 101));
  Apply(PartEnded(2, 103));
  row = Row();
  EXPECT_FALSE(row.holds_nodes());
  EXPECT_EQ(row.held_us(), (91 + 93) * kSecond);
  EXPECT_EQ(row.cpu_us(), 4 * (91 + 93) * kSecond);
  EXPECT_EQ(row.gpu_us(), 2 * (91 + 93) * kSecond);
  EXPECT_EQ(row.server_id(), 77u);
  EXPECT_EQ(row.ended_order(), 1u);
  EXPECT_EQ(row.id(), 5u);
  EXPECT_EQ(row.user(), "alice");
  EXPECT_EQ(row.nodes(), "a,b");
  EXPECT_EQ(row.node_count(), 2u);
  EXPECT_EQ(row.cpus(), 8u);
  EXPECT_EQ(row.gpus(), 4u);
  EXPECT_EQ(row.workers(), 4u);
  EXPECT_EQ(row.command(), "./train --lr=1");
  EXPECT_EQ(row.submitted_unix_ms(), 1001000);
  EXPECT_EQ(row.began_unix_ms(), 1010000);
  EXPECT_EQ(row.ended_unix_ms(), 1100000);
  EXPECT_THAT(row.lost(), IsEmpty());
  EXPECT_THAT(row.node_uses(), SizeIs(2));
}

TEST_F(RowsTest, ANodeThatAJobHadTwiceIsSummed) {
  Begin();
  Apply(PartEnded(2, 20));
  Apply(Placed(3, "b", 30));
  Apply(Ended(v1::SUCCEEDED, v1::FAILURE_CAUSE_UNSPECIFIED, 100));
  Apply(PartEnded(3, 100));
  Apply(PartEnded(1, 100));
  const v1::AccountedJob row = Row();
  ASSERT_THAT(row.node_uses(), SizeIs(2));
  EXPECT_EQ(row.node_uses(0).node(), "a");
  EXPECT_EQ(row.node_uses(0).held_us(), 90 * kSecond);
  EXPECT_EQ(row.node_uses(1).node(), "b");
  EXPECT_EQ(row.node_uses(1).held_us(), 80 * kSecond);
  EXPECT_EQ(row.node_uses(1).gpu_us(), 160 * kSecond);
}

// Fault (state): An allocation of an earlier version of the server ends -> Its time is not
// known and is not counted
TEST_F(RowsTest, AllocationsWithoutTimesCountNothing) {
  v1::Record placed = Placed(1, "a", 10);
  placed.mutable_part_placed()->clear_at_us();
  Apply(placed);
  Apply(PartEnded(1, 50));
  Apply(Placed(2, "b", 60));
  v1::Record ended = PartEnded(2, 70);
  ended.mutable_part_ended()->clear_at_us();
  Apply(ended);
  Apply(Ended(v1::SUCCEEDED, v1::FAILURE_CAUSE_UNSPECIFIED, 100));
  EXPECT_EQ(Row().held_us(), 0);
}

TEST_F(RowsTest, TheTimeFromAFailureToTheNextWorkersIsLostByItsCause) {
  Begin();
  AddGeneration(1, 0, 2, 20, 23);
  AddFailure(1, v1::NODE_LOST);
  AddGeneration(2, 23, 30, 0, 90);
  Apply(Ended(v1::SUCCEEDED, v1::FAILURE_CAUSE_UNSPECIFIED, 100));
  Apply(PartEnded(1, 100));
  Apply(PartEnded(2, 100));
  const v1::AccountedJob row = Row();
  ASSERT_THAT(row.lost(), SizeIs(1));
  EXPECT_EQ(row.lost(0).cause(), v1::NODE_LOST);
  EXPECT_FALSE(row.lost(0).wasted());
  EXPECT_EQ(row.lost(0).failures(), 1u);
  EXPECT_EQ(row.lost(0).wall_us(), 10 * kSecond);
  // Two nodes with two GPUs each.
  EXPECT_EQ(row.lost(0).gpu_us(), 40 * kSecond);
  EXPECT_EQ(row.lost(0).cpu_us(), 80 * kSecond);
}

TEST_F(RowsTest, AGenerationThatFailsBeforeItRunsBeginsATimeOfItsOwn) {
  Begin();
  AddGeneration(1, 0, 2, 20, 21);
  AddFailure(1, v1::CRASH);
  AddGeneration(2, 21, 0, 25, 26);
  AddFailure(2, v1::START_TIMEOUT);
  AddGeneration(3, 26, 40, 0, 90);
  Apply(Ended(v1::SUCCEEDED, v1::FAILURE_CAUSE_UNSPECIFIED, 100));
  const v1::AccountedJob row = Row();
  ASSERT_THAT(row.lost(), SizeIs(2));
  EXPECT_EQ(row.lost(0).cause(), v1::CRASH);
  EXPECT_EQ(row.lost(0).wall_us(), 5 * kSecond);
  EXPECT_EQ(row.lost(1).cause(), v1::START_TIMEOUT);
  EXPECT_EQ(row.lost(1).wall_us(), 15 * kSecond);
}

TEST_F(RowsTest, TimeInTheQueueBetweenTwoGenerationsIsNotLost) {
  Begin();
  AddGeneration(1, 0, 2, 20, 23);
  AddFailure(1, v1::NODE_LOST);
  AddGeneration(2, 60, 65, 0, 90);
  Apply(Ended(v1::SUCCEEDED, v1::FAILURE_CAUSE_UNSPECIFIED, 100));
  const v1::AccountedJob row = Row();
  ASSERT_THAT(row.lost(), SizeIs(1));
  EXPECT_EQ(row.lost(0).wall_us(), 8 * kSecond);
}

TEST_F(RowsTest, AGenerationThatIsStoppedWithoutAFailureLosesNothing) {
  Begin();
  AddGeneration(1, 0, 2, 0, 23);
  AddGeneration(2, 23, 30, 0, 90);
  Apply(Ended(v1::SUCCEEDED, v1::FAILURE_CAUSE_UNSPECIFIED, 100));
  EXPECT_THAT(Row().lost(), IsEmpty());
}

TEST_F(RowsTest, AFailedJobHasWastedAllThatWasNotLostBefore) {
  Begin();
  AddGeneration(1, 0, 2, 20, 23);
  AddFailure(1, v1::HANG);
  AddGeneration(2, 23, 30, 80, 85);
  Apply(Ended(v1::FAILED, v1::OUT_OF_MEMORY, 100));
  Apply(PartEnded(1, 100));
  Apply(PartEnded(2, 100));
  const v1::AccountedJob row = Row();
  ASSERT_THAT(row.lost(), SizeIs(2));
  EXPECT_EQ(row.lost(0).cause(), v1::HANG);
  EXPECT_EQ(row.lost(0).gpu_us(), 40 * kSecond);
  EXPECT_EQ(row.lost(1).cause(), v1::OUT_OF_MEMORY);
  EXPECT_TRUE(row.lost(1).wasted());
  EXPECT_EQ(row.lost(0).gpu_us() + row.lost(1).gpu_us(), row.gpu_us());
  EXPECT_EQ(row.lost(0).cpu_us() + row.lost(1).cpu_us(), row.cpu_us());
}

TEST_F(RowsTest, ACancelledJobHasLostTheTimeSinceAFailureAndWastedNothing) {
  Begin();
  AddGeneration(1, 0, 2, 20, 23);
  AddFailure(1, v1::CRASH);
  Apply(Ended(v1::CANCELLED_PHASE, v1::FAILURE_CAUSE_UNSPECIFIED, 100));
  const v1::AccountedJob row = Row();
  ASSERT_THAT(row.lost(), SizeIs(1));
  EXPECT_FALSE(row.lost(0).wasted());
  EXPECT_EQ(row.lost(0).wall_us(), 70 * kSecond);
}

TEST_F(RowsTest, LostTimeIsAtMostWhatWasUsed) {
  Apply(Placed(1, "a", 10));
  // By its timeline it had more nodes than allocations.
  AddGeneration(1, 0, 1, 2, 3)->set_nodes(100);
  AddFailure(1, v1::CRASH);
  AddGeneration(2, 3, 80, 0, 0);
  Apply(Ended(v1::SUCCEEDED, v1::FAILURE_CAUSE_UNSPECIFIED, 100));
  const v1::AccountedJob row = Row();
  ASSERT_THAT(row.lost(), SizeIs(1));
  EXPECT_EQ(row.lost(0).gpu_us(), row.gpu_us());
}

// Fault (state): A job fails so often that its first failures are forgotten -> The time is lost
// for an unknown cause
TEST_F(RowsTest, AFailureThatIsForgottenHasNoKnownCause) {
  Begin();
  AddGeneration(1, 0, 2, 20, 23);
  AddGeneration(2, 23, 30, 0, 90);
  Apply(Ended(v1::SUCCEEDED, v1::FAILURE_CAUSE_UNSPECIFIED, 100));
  ASSERT_THAT(Row().lost(), SizeIs(1));
  EXPECT_EQ(CauseWord(Row().lost(0).cause()), "unknown");
  EXPECT_EQ(CauseWord(v1::NODE_LOST), "node_lost");
}

TEST_F(RowsTest, AJobThatNeverBeganUsedAndWastedNothing) {
  Apply(Ended(v1::FAILED, v1::JOIN_TIMEOUT, 100));
  const v1::AccountedJob row = Row();
  EXPECT_EQ(row.held_us(), 0);
  EXPECT_EQ(row.began_unix_ms(), 0);
  EXPECT_EQ(row.node_count(), 0u);
  ASSERT_THAT(row.lost(), SizeIs(1));
  EXPECT_EQ(row.lost(0).gpu_us(), 0);
  EXPECT_EQ(row.lost(0).wall_us(), 0);
}

TEST_F(RowsTest, ARowIsMadeWhenTheJobEndsAndWhenItsLastAllocationHas) {
  Begin();
  const auto after = [&](const v1::Record& record) {
    const std::string changed = JobChangedBy(record, state_);
    Apply(record);
    return RowAfter(record, changed, state_, kOrigin);
  };
  EXPECT_FALSE(after(PartEnded(9, 50)).has_value());
  Apply(Placed(3, "c", 50));
  EXPECT_FALSE(after(PartEnded(3, 60)).has_value());
  const auto ended = after(Ended(v1::SUCCEEDED, v1::FAILURE_CAUSE_UNSPECIFIED, 100));
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(ended->holds_nodes());
  EXPECT_FALSE(after(PartEnded(1, 101)).has_value());
  const auto whole = after(PartEnded(2, 102));
  ASSERT_TRUE(whole.has_value());
  EXPECT_FALSE(whole->holds_nodes());
  EXPECT_EQ(whole->ended_order(), ended->ended_order());
  EXPECT_THAT(RowsOf(state_, kOrigin), SizeIs(1));
}

TEST_F(RowsTest, TheElementsOfArraysAndStepsAreMarked) {
  saved::Submission* submission = job().saved.mutable_submission();
  submission->set_array(5);
  submission->set_array_index(7);
  submission->set_step_of(4);
  submission->set_step(2);
  Apply(Ended(v1::CANCELLED_PHASE, v1::CANCELLED, 100));
  EXPECT_EQ(Row().array(), 5u);
  EXPECT_EQ(Row().array_index(), 7u);
  EXPECT_EQ(Row().step_of(), 4u);
  EXPECT_EQ(Row().step(), 2u);
}

}  // namespace
}  // namespace cadre::accounting
