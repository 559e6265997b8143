#include "rendezvous/state/apply.h"

#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "rendezvous/state/records.h"
#include "rendezvous/state/state_limits.h"

namespace cadre::state {
namespace {

class ApplyTest : public testing::Test {
 protected:
  // Returns a record of the job "train" without a body.
  v1::Record Train() {
    v1::Record record;
    record.set_job("train");
    return record;
  }
  void Apply(const v1::Record& record) { state::Apply(record, &state_); }
  const Job& job() const { return state_.jobs.at("train"); }

  void Create(const std::string& user) {
    v1::Record record = Train();
    saved::Job* job = record.mutable_job_created()->mutable_job();
    job->mutable_spec()->set_name("train");
    job->mutable_spec()->mutable_restart()->set_max(1);
    job->set_phase(user.empty() ? v1::GATHERING : v1::QUEUED);
    job->mutable_times()->set_created_us(100);
    if (!user.empty()) {
      job->mutable_submission()->set_user(user);
      job->mutable_submission()->set_order(state_.counters.submitted() + 1);
    }
    Apply(record);
  }
  void Admit(const std::string& node, uint32_t slots) {
    v1::Record record = Train();
    record.mutable_node_admitted()->mutable_node()->set_name(node);
    record.mutable_node_admitted()->mutable_node()->set_slots(slots);
    Apply(record);
  }
  // "a" with ranks 0 and 1, "b" with rank 2.
  void Form(uint64_t number) {
    v1::Record record = Train();
    saved::Generation* formed = record.mutable_generation_formed()->mutable_generation();
    formed->set_number(number);
    saved::Member* a = formed->add_members();
    a->set_node("a");
    a->set_slots(2);
    saved::Member* b = formed->add_members();
    b->set_node("b");
    b->set_first_rank(2);
    b->set_slots(1);
    Apply(record);
  }
  void OrderStop(const std::string& root_cause, bool unrelated) {
    v1::Record record = Train();
    record.mutable_stop_ordered()->set_generation(job().generation.number());
    record.mutable_stop_ordered()->mutable_root_cause()->set_message(root_cause);
    record.mutable_stop_ordered()->set_unrelated(unrelated);
    Apply(record);
  }
  void End() {
    v1::Record record = Train();
    record.mutable_job_ended()->mutable_verdict()->set_outcome(v1::FAILED);
    Apply(record);
  }
  void Begin() {
    Create("");
    Admit("a", 2);
    Admit("b", 1);
    Form(1);
  }
  void PlaceFirstPart() {
    v1::Record record;
    record.mutable_part_placed()->mutable_part()->set_id(5);
    record.mutable_part_placed()->mutable_part()->set_job("train");
    record.mutable_part_placed()->mutable_part()->set_node("a");
    record.mutable_part_placed()->set_at_us(900);
    record.mutable_part_placed()->set_leaves_queue(true);
    Apply(record);
  }

  State state_;
};

TEST_F(ApplyTest, ALostNodeTakesItsWorkersWithIt) {
  Begin();
  v1::Record record = Train();
  record.mutable_node_removed()->set_node("a");
  Apply(record);
  EXPECT_EQ(job().slots, 1u);
  EXPECT_TRUE(job().generation.member(0).lost());
  EXPECT_EQ(job().generation.worker(1), saved::RANK_FAILED);
  EXPECT_EQ(job().generation.started, 2u);
  EXPECT_EQ(job().generation.nodes_busy, 1u);
}

TEST_F(ApplyTest, ACorrectedRootCauseFollowedFromTheNewOneOrStandsAlone) {
  Begin();
  OrderStop("rank 2 crashed", false);
  OrderStop("node a is lost", false);
  EXPECT_EQ(job().generation.root_cause()->message(), "node a is lost");
  ASSERT_EQ(job().generation.saved.stop().collateral_size(), 1);
  EXPECT_EQ(job().generation.saved.stop().collateral(0).message(), "rank 2 crashed");
  OrderStop("cancelled", true);
  ASSERT_EQ(job().saved.earlier_size(), 1);
  EXPECT_EQ(job().saved.earlier(0).message(), "node a is lost");
}

TEST_F(ApplyTest, WhatAUsersJobsTakeIsCountedUntilTheyEnd) {
  Create("ann");
  const size_t specs = state_.by_user.BytesOf("ann").specs;
  EXPECT_GT(specs, 0u);
  PlaceFirstPart();
  Form(1);
  v1::Record record = Train();
  record.mutable_key_written()->set_generation(1);
  record.mutable_key_written()->set_key("key");
  record.mutable_key_written()->set_value("value");
  Apply(record);
  EXPECT_EQ(state_.by_user.BytesOf("ann").stores, 8u);
  record.mutable_key_written()->set_value("v");
  Apply(record);
  EXPECT_EQ(state_.by_user.BytesOf("ann").stores, 4u);
  // A snapshot gives the same bytes.
  State again;
  for (const v1::Record& piece : SnapshotOf(state_)) state::Apply(piece, &again);
  EXPECT_EQ(again.by_user.BytesOf("ann").stores, 4u);
  EXPECT_EQ(again.by_user.BytesOf("ann").specs, specs);
  Form(2);
  EXPECT_EQ(state_.by_user.BytesOf("ann").stores, 0u);
  End();
  EXPECT_EQ(state_.by_user.BytesOf("ann").specs, 0u);
  EXPECT_EQ(state_.by_user.all_bytes().specs, 0u);
}

TEST_F(ApplyTest, RecordsOfAnotherGenerationAreIgnored) {
  Begin();
  v1::Record record = Train();
  record.mutable_worker_ran()->set_generation(2);
  Apply(record);
  record.mutable_worker_ran()->set_generation(1);
  record.mutable_worker_ran()->set_rank(3);
  Apply(record);
  EXPECT_EQ(job().generation.running, 0u);
}

TEST_F(ApplyTest, HowWorkersBeganIsKeptByNodeAndGeneration) {
  Begin();
  v1::Record record = Train();
  record.mutable_worker_ran()->set_generation(1);
  record.mutable_worker_ran()->set_warm(true);
  Apply(record);
  record.mutable_worker_ran()->set_rank(1);
  record.mutable_worker_ran()->set_warm(false);
  record.mutable_worker_ran()->set_why_plain("the first reason");
  Apply(record);
  record.mutable_worker_ran()->set_rank(2);
  record.mutable_worker_ran()->set_why_plain("another");
  Apply(record);
  for (const auto& [node, us] : {std::pair("a", 300), std::pair("b", 200)}) {
    v1::Record imported = Train();
    imported.mutable_node_imported()->set_generation(1);
    imported.mutable_node_imported()->set_node(node);
    imported.mutable_node_imported()->mutable_imports()->set_worker_us(us);
    imported.mutable_node_imported()->mutable_imports()->add_left_to_workers("hub: why");
    Apply(imported);
  }
  EXPECT_EQ(job().generation.member(0).warm(), 1u);
  EXPECT_EQ(job().generation.member(0).why_plain(), "the first reason");
  EXPECT_EQ(job().generation.member(1).why_plain(), "another");
  EXPECT_EQ(job().generation.member(1).imports().worker_us(), 200);
  const v1::GenerationTimeline& timeline = job().saved.timeline().generations(0);
  EXPECT_EQ(timeline.warm(), 1u);
  EXPECT_EQ(timeline.why_plain(), "the first reason");
  EXPECT_EQ(timeline.imports_us(), 300);
  ASSERT_EQ(timeline.left_to_workers_size(), 1);
  EXPECT_EQ(timeline.left_to_workers(0), "hub: why");
}

TEST_F(ApplyTest, ARunOfANameThatIsUsedAgainGoesOnCountingGenerations) {
  Begin();
  End();
  Create("");
  EXPECT_EQ(job().generation.number(), 1u);
  EXPECT_EQ(job().generation.world_size(), 0u);
  EXPECT_EQ(job().saved.generations(), 0u);
  EXPECT_TRUE(state_.ended_jobs.empty());
}

TEST_F(ApplyTest, AnEndedJobIsKeptUnderAnotherNameWhenItsNameIsTaken) {
  Create("alice");
  End();
  v1::Record record;
  record.set_job("train");
  record.mutable_job_created()->set_ended_kept_as("train-1");
  saved::Job* next = record.mutable_job_created()->mutable_job();
  next->mutable_spec()->set_name("train");
  next->mutable_submission()->set_user("bob");
  next->mutable_submission()->set_order(2);
  Apply(record);
  EXPECT_EQ(state_.jobs.at("train").user(), "bob");
  EXPECT_EQ(state_.jobs.at("train-1").user(), "alice");
  EXPECT_EQ(state_.jobs.at("train-1").name(), "train-1");
  EXPECT_EQ(state_.jobs.at("train-1").submitted_name(), "train");
  EXPECT_EQ(state_.ended_jobs.begin()->second, "train-1");
  State restored;
  for (const v1::Record& one : SnapshotOf(state_)) state::Apply(one, &restored);
  EXPECT_EQ(TextOf(restored), TextOf(state_));
  EXPECT_EQ(restored.by_id, state_.by_id);
  EXPECT_EQ(restored.by_submitted_name, state_.by_submitted_name);
}

TEST_F(ApplyTest, APartTakesItsJobOutOfTheQueueAndBackWhereTheRecordSaysSo) {
  Create("alice");
  PlaceFirstPart();
  EXPECT_EQ(job().phase(), v1::GATHERING);
  EXPECT_EQ(job().saved.times().created_us(), 900);
  v1::Record ended;
  ended.mutable_part_ended()->set_id(5);
  ended.mutable_part_ended()->mutable_avoid()->set_node("a");
  ended.mutable_part_ended()->set_back_to_queue(true);
  Apply(ended);
  EXPECT_EQ(job().phase(), v1::QUEUED);
  EXPECT_EQ(job().saved.submission().avoided(0).node(), "a");
  EXPECT_EQ(job().saved.submission().failed_starts(), 1u);
  EXPECT_EQ(state_.counters.last_part(), 5u);
}

TEST_F(ApplyTest, WhatAJobUsedOfNodesIsSummedWhenAllocationsEnd) {
  Create("alice");
  const auto place = [&](uint64_t id, const std::string& node, int64_t at_us) {
    v1::Record record;
    record.mutable_part_placed()->mutable_part()->set_id(id);
    record.mutable_part_placed()->mutable_part()->set_job("train");
    record.mutable_part_placed()->mutable_part()->set_node(node);
    record.mutable_part_placed()->mutable_part()->set_cpus(4);
    record.mutable_part_placed()->mutable_part()->set_gpus(2);
    record.mutable_part_placed()->set_at_us(at_us);
    Apply(record);
  };
  const auto end = [&](uint64_t id, int64_t at_us) {
    v1::Record record;
    record.mutable_part_ended()->set_id(id);
    record.mutable_part_ended()->set_at_us(at_us);
    Apply(record);
  };
  place(1, "b", 1000);
  place(2, "a", 1000);
  EXPECT_EQ(state_.cluster.allocations.at(1).placed_us(), 1000);
  end(1, 1500);
  place(3, "b", 2000);
  // Those of older records have no time.
  place(4, "c", 0);
  end(4, 3000);
  End();
  end(2, 3000);
  end(3, 4000);
  const auto& times = job().saved.node_times();
  ASSERT_EQ(times.size(), 2);
  EXPECT_EQ(times[0].node(), "a");
  EXPECT_EQ(times[0].held_us(), 2000);
  EXPECT_EQ(times[1].node(), "b");
  EXPECT_EQ(times[1].held_us(), 2500);
  EXPECT_EQ(times[1].cpu_us(), 10000);
  EXPECT_EQ(times[1].gpu_us(), 5000);
  // A snapshot keeps both.
  State again;
  for (const v1::Record& piece : SnapshotOf(state_)) state::Apply(piece, &again);
  EXPECT_EQ(TextOf(again), TextOf(state_));
}

TEST_F(ApplyTest, AvoidedNodesAreInOrderAndStayUnfit) {
  Create("alice");
  for (const char* node : {"c", "a", "b", "a"}) {
    PlaceFirstPart();
    v1::Record ended;
    ended.mutable_part_ended()->set_id(5);
    ended.mutable_part_ended()->mutable_avoid()->set_node(node);
    ended.mutable_part_ended()->mutable_avoid()->set_unfit(node == std::string("c"));
    Apply(ended);
  }
  const auto& avoided = job().saved.submission().avoided();
  ASSERT_EQ(avoided.size(), 3);
  EXPECT_EQ(avoided[0].node(), "a");
  EXPECT_EQ(avoided[1].node(), "b");
  EXPECT_EQ(avoided[2].node(), "c");
  EXPECT_TRUE(avoided[2].unfit());
}

TEST_F(ApplyTest, TheOldestEndedJobIsForgotten) {
  std::string forgotten;
  for (size_t i = 0; i <= kMaxEndedJobs; ++i) {
    v1::Record record;
    record.set_job("job" + std::to_string(i));
    record.mutable_job_created()->mutable_job()->mutable_spec()->set_name(record.job());
    Apply(record);
    record.mutable_job_ended()->mutable_verdict()->set_outcome(v1::FAILED);
    forgotten = state::Apply(record, &state_);
  }
  EXPECT_EQ(forgotten, "job0");
  EXPECT_EQ(state_.jobs.size(), kMaxEndedJobs);
}

// Fault (server): A job's name is reused after the server forgot the earlier job, 1,000 others
// having ended -> Generations go on counting, so that a worker of the earlier job learns that its
// own is over
TEST_F(ApplyTest, ANameOfAJobThatIsForgottenGoesOnCountingGenerations) {
  Begin();
  Form(7);
  End();
  for (size_t i = 0; i < kMaxEndedJobs; ++i) {
    v1::Record record;
    record.set_job("job" + std::to_string(i));
    record.mutable_job_created()->mutable_job()->mutable_spec()->set_name(record.job());
    Apply(record);
    record.mutable_job_ended()->mutable_verdict()->set_outcome(v1::FAILED);
    Apply(record);
  }
  ASSERT_EQ(state_.jobs.count("train"), 0u);
  State restored;
  for (const v1::Record& one : SnapshotOf(state_)) state::Apply(one, &restored);
  state_ = std::move(restored);
  Create("");
  EXPECT_EQ(job().generation.number(), 7u);
}

TEST_F(ApplyTest, ASnapshotGivesTheStateAgain) {
  Create("alice");
  PlaceFirstPart();
  Admit("a", 2);
  Admit("b", 1);
  Form(1);
  v1::Record record = Train();
  record.mutable_key_written()->set_generation(1);
  record.mutable_key_written()->set_key("k");
  Apply(record);
  OrderStop("rank 2 crashed", false);
  v1::Record node;
  node.mutable_cluster_node_set()->mutable_node()->set_name("a");
  Apply(node);
  State restored;
  for (const v1::Record& one : SnapshotOf(state_)) state::Apply(one, &restored);
  EXPECT_EQ(TextOf(restored), TextOf(state_));
  EXPECT_EQ(restored.by_user.NotEnded("alice"), 1u);
  EXPECT_EQ(restored.jobs.at("train").policy.restart_max, 1u);
}

}  // namespace
}  // namespace cadre::state
