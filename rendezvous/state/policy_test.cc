#include "rendezvous/state/policy.h"

#include "gtest/gtest.h"
#include "rendezvous/testing/test_messages.h"

namespace cadre::state {
namespace {

v1::Join JoinOf(uint32_t slots) {
  return JoinFrom({"train", "a", 1, 0}, SpecOf("train", 1, 1, 0), slots).join();
}

TEST(PolicyTest, ZeroMeansTheDefault) {
  const Policy policy = PolicyOf(SpecOf("train", 2, 2, 0));
  EXPECT_EQ(policy.settle, absl::Seconds(3));
  EXPECT_EQ(policy.join_timeout, absl::Minutes(10));
  EXPECT_EQ(policy.start_timeout, absl::Minutes(5));
  EXPECT_EQ(policy.stop_grace, absl::Seconds(30));
  EXPECT_EQ(policy.total_timeout, absl::InfiniteDuration());
  EXPECT_EQ(policy.backoff_min, absl::Seconds(1));
  EXPECT_EQ(policy.backoff_max, absl::Minutes(1));
  EXPECT_EQ(policy.never_exit_codes.count(93), 1u);
  EXPECT_EQ(policy.retried.count(v1::PREEMPTED), 1u);
  EXPECT_EQ(policy.retried.count(v1::EXEC_FAILED), 0u);
}

TEST(PolicyTest, ABackoffOfZeroIsNone) {
  v1::JobSpec spec = SpecOf("train", 2, 2, 0);
  spec.mutable_restart()->mutable_backoff_min();
  spec.mutable_restart()->mutable_backoff_max();
  EXPECT_EQ(PolicyOf(spec).backoff_min, absl::ZeroDuration());
  EXPECT_EQ(PolicyOf(spec).backoff_max, absl::ZeroDuration());
}

TEST(PolicyTest, TheSizeIsAMultipleOfTheUnitWithinTheRange) {
  v1::JobSpec spec = SpecOf("train", 3, 8, 0);
  spec.mutable_elastic()->set_unit(2);
  const Policy policy = PolicyOf(spec);
  EXPECT_EQ(policy.SizeFor(3), 0u);
  EXPECT_EQ(policy.SizeFor(4), 4u);
  EXPECT_EQ(policy.SizeFor(7), 6u);
  EXPECT_EQ(policy.SizeFor(100), 8u);
  EXPECT_EQ(policy.target(), 8u);
}

TEST(PolicyTest, JobNames) {
  EXPECT_TRUE(IsJobName("0-a"));
  EXPECT_TRUE(IsJobName(std::string(63, 'a')));
  EXPECT_FALSE(IsJobName(std::string(64, 'a')));
  EXPECT_FALSE(IsJobName(""));
  EXPECT_FALSE(IsJobName("-a"));
  EXPECT_FALSE(IsJobName("A"));
  EXPECT_FALSE(IsJobName("a/b"));
}

TEST(PolicyTest, NodesOutsideTheirLimits) {
  EXPECT_TRUE(CheckSpec(SpecOf("train", 1, kMaxNodes, 0)).ok());
  for (const auto& [min, max] : {std::pair<uint32_t, uint32_t>{0, 1}, {2, 1}, {1, kMaxNodes + 1}}) {
    EXPECT_EQ(CheckSpec(SpecOf("train", min, max, 0)).code(), absl::StatusCode::kInvalidArgument);
  }
  v1::JobSpec spec = SpecOf("train", 3, 3, 0);
  spec.set_spares(kMaxNodes + 1);
  EXPECT_EQ(CheckSpec(spec).message(), "spares: at most 100000 are allowed; got 100001");
  spec.set_spares(kMaxNodes);
  EXPECT_TRUE(CheckSpec(spec).ok());
  spec.mutable_elastic()->set_unit(2);
  EXPECT_EQ(CheckSpec(spec).message(), "no multiple of elastic.unit 2 lies in nodes 3");
}

TEST(PolicyTest, ALargeSpecIsRefused) {
  v1::JobSpec spec = SpecOf("train", 1, 1, 0);
  spec.set_working_dir(std::string(kMaxSpecBytes, 'x'));
  EXPECT_EQ(CheckSpec(spec).code(), absl::StatusCode::kInvalidArgument);
}

TEST(PolicyTest, ADurationThatIsNoneIsRefused) {
  v1::JobSpec spec = SpecOf("train", 1, 1, 0);
  spec.mutable_timeouts()->mutable_start()->set_seconds(-1);
  EXPECT_EQ(CheckSpec(spec).message(), "timeouts.start must be between 0 and 10 years; got -1s");
}

TEST(PolicyTest, SlotsOutsideTheirLimits) {
  EXPECT_TRUE(CheckJoin(JoinOf(1)).ok());
  EXPECT_TRUE(CheckJoin(JoinOf(kMaxSlotsPerNode)).ok());
  EXPECT_EQ(CheckJoin(JoinOf(0)).message(), "node a offers 0 slots; 1 to 4096 are allowed");
  EXPECT_EQ(CheckJoin(JoinOf(kMaxSlotsPerNode + 1)).code(), absl::StatusCode::kInvalidArgument);
}

TEST(PolicyTest, WhatANodeSaysOfItselfIsShortAndHarmless) {
  v1::Join join = JoinOf(1);
  join.set_host(std::string(kMaxNodeTextBytes, 'h'));
  EXPECT_TRUE(CheckJoin(join).ok());
  join.set_host(std::string(kMaxNodeTextBytes + 1, 'h'));
  EXPECT_EQ(CheckJoin(join).message(), "host has 256 bytes; at most 255 are allowed");
  join = JoinOf(1);
  join.set_node("a\x1b[2J");
  EXPECT_EQ(CheckJoin(join).message(), "node name holds a control character: \"a\\x1b[2J\"");
  join = JoinOf(1);
  join.set_held_port(65536);
  EXPECT_EQ(CheckJoin(join).message(), "node a: a port is at most 65535; got 65536");
}

TEST(PolicyTest, ADifferenceIsNamed_AndACommandIsEachNodesOwn) {
  v1::JobSpec other = SpecOf("train", 1, 1, 0);
  other.set_command(0, std::string(100000, 'x'));
  EXPECT_TRUE(CheckSameJob(SpecOf("train", 1, 1, 0), other).ok());
  EXPECT_EQ(CheckSameJob(SpecOf("train", 2, 2, 0), other).message(),
            "nodes differs: the job has 2, this node has 1; give every node the same, or another "
            "job name");
}

TEST(PolicyTest, WhoSaysWhenItComesInSaysTheSameAsTheJob) {
  const v1::JobSpec silent = SpecOf("train", 1, 2, 0);
  v1::JobSpec waits = silent, hurries = silent;
  waits.mutable_elastic()->set_scale_up(v1::ElasticPolicy::AT_CHECKPOINT);
  hurries.mutable_elastic()->set_scale_up(v1::ElasticPolicy::IMMEDIATELY);
  EXPECT_TRUE(CheckSameJob(silent, waits).ok());
  EXPECT_TRUE(CheckSameJob(hurries, silent).ok());
  EXPECT_TRUE(CheckSameJob(hurries, hurries).ok());
  EXPECT_EQ(CheckSameJob(silent, hurries).message(),
            "elastic.scale_up differs: the job has at_checkpoint, this node has immediately; give "
            "every node the same, or another job name");
  EXPECT_FALSE(CheckSameJob(hurries, waits).ok());
}

}  // namespace
}  // namespace cadre::state
