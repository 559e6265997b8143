#include "rendezvous/cluster/schedule.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::cluster {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

const MonoTime kNow = MonoTime::FromMicros(1000000);

std::vector<ScheduleNode> Nodes(int count, uint32_t cpus = 4, uint32_t gpus = 0) {
  std::vector<ScheduleNode> nodes;
  for (int i = 0; i < count; ++i) {
    ScheduleNode node;
    node.name = absl::StrCat("n", i);
    node.cpus = cpus;
    node.gpus = gpus;
    nodes.push_back(std::move(node));
  }
  return nodes;
}

constexpr uint64_t kGib = uint64_t{1} << 30;

std::vector<ScheduleNode> NodesOfMemory(int count, uint64_t gib) {
  std::vector<ScheduleNode> nodes = Nodes(count, 16);
  for (ScheduleNode& node : nodes) node.memory = gib * kGib;
  return nodes;
}

// `order` and the name agree: j1 is older than j2. The job takes whole nodes of four CPUs.
ScheduleJob Job(uint64_t order, uint32_t min, uint32_t max = 0, int32_t priority = 0) {
  ScheduleJob job;
  job.name = absl::StrCat("j", order);
  job.user = "alice";
  job.order = order;
  job.min = min;
  job.max = max == 0 ? min : max;
  job.priority = priority;
  job.workers.set_kind(v1::WorkersPerNode::COUNT);
  job.workers.set_count(4);
  return job;
}

// Returns the job as it runs on nodes first, first + 1, ...
ScheduleJob Running(ScheduleJob job, int first, int count) {
  for (int i = first; i < first + count; ++i) {
    job.held.push_back({absl::StrCat("n", i), Share{4, 4, 0}, false});
  }
  return job;
}

ScheduleJob Limited(ScheduleJob job, absl::Duration limit) {
  job.limit = limit;
  if (!job.held.empty()) job.ends = kNow + limit;
  return job;
}

// "j1:n0"
std::vector<std::string> Placements(const Schedule& schedule) {
  std::vector<std::string> all;
  for (const Placed& placed : schedule.place) {
    all.push_back(absl::StrCat(placed.job, ":", placed.node));
  }
  return all;
}
std::vector<std::string> Withdrawals(const Schedule& schedule) {
  std::vector<std::string> all;
  for (const Withdrawn& withdrawn : schedule.withdraw) {
    all.push_back(absl::StrCat(withdrawn.job, ":", withdrawn.node));
  }
  return all;
}

TEST(ScheduleTest, AJobGetsAllItsNodesOrNone) {
  Schedule schedule = PlaceJobs(Nodes(3), {Job(1, 2), Job(2, 2)}, kNow);
  EXPECT_THAT(Placements(schedule), ElementsAre("j1:n0", "j1:n1"));
  EXPECT_EQ(schedule.head, "j2");
  EXPECT_EQ(schedule.waiting["j2"].reason, "2 nodes with 4 CPUs free: 1 is, and it is the next");
}

TEST(ScheduleTest, PriorityComesBeforeAge) {
  const Schedule schedule = PlaceJobs(Nodes(1), {Job(1, 1), Job(2, 1, 1, 5)}, kNow);
  EXPECT_THAT(Placements(schedule), ElementsAre("j2:n0"));
  EXPECT_EQ(schedule.head, "j1");
}

TEST(ScheduleTest, WhatCannotFitKeepsNobodyWaiting) {
  std::vector<ScheduleNode> nodes = Nodes(3);
  nodes[2].closed = "drained";
  Schedule schedule = PlaceJobs(nodes, {Job(1, 3), Job(2, 2)}, kNow);
  EXPECT_THAT(Placements(schedule), ElementsAre("j2:n0", "j2:n1"));
  EXPECT_EQ(schedule.waiting["j1"].reason,
            "3 nodes with 4 CPUs: 2 of 3 can take it; n2 is drained");
  EXPECT_EQ(schedule.head, "");
}

TEST(ScheduleTest, ForAJobOfMoreNodesThanThereAreTheyAreTooFew) {
  Schedule schedule = PlaceJobs(Nodes(2), {Job(1, 7)}, kNow);
  EXPECT_EQ(schedule.waiting["j1"].reason, "7 nodes with 4 CPUs: the cluster has only 2");
  schedule = PlaceJobs(Nodes(2), {Running(Job(1, 3), 0, 1)}, kNow);
  EXPECT_EQ(schedule.waiting["j1"].reason,
            "2 more nodes with 4 CPUs: the cluster has only 1 other");
  schedule = PlaceJobs(Nodes(3), {Running(Job(1, 4), 0, 1)}, kNow);
  EXPECT_EQ(schedule.waiting["j1"].reason,
            "3 more nodes with 4 CPUs: the cluster has only 2 others");
}

TEST(ScheduleTest, WhatRemainsIsNotCountedOn) {
  ScheduleJob over = Running(Job(1, 0), 0, 1);
  over.min = over.max = 0;
  over.held[0].ending = true;
  Schedule schedule = PlaceJobs(Nodes(2), {over, Job(2, 2), Job(3, 1)}, kNow);
  EXPECT_EQ(schedule.head, "j2");
  EXPECT_THAT(schedule.waiting["j2"].reason, HasSubstr("what it lacks is being given up"));
  over.held[0].unkillable = true;
  schedule = PlaceJobs(Nodes(2), {over, Job(2, 2), Job(3, 1)}, kNow);
  EXPECT_THAT(Placements(schedule), ElementsAre("j3:n1"));
  EXPECT_EQ(schedule.waiting["j2"].reason, "2 nodes with 4 CPUs: 1 of 2 can take it");
}

TEST(ScheduleTest, WithoutALimitOnlyWhatTheHeadCannotUseIsTaken) {
  // j1 has no limit; j2 needs all four nodes' CPUs, and j3 would occupy one of them.
  std::vector<ScheduleNode> nodes = Nodes(4);
  EXPECT_THAT(Placements(PlaceJobs(nodes, {Running(Job(1, 2), 0, 2), Job(2, 4), Job(3, 1)}, kNow)),
              IsEmpty());
  // j3 may use a node that is too small for the head.
  ScheduleJob small = Job(3, 1);
  small.workers.set_count(1);
  nodes.push_back(Nodes(1, 2)[0]);
  nodes.back().name = "small";
  const Schedule schedule = PlaceJobs(nodes, {Running(Job(1, 2), 0, 2), Job(2, 4), small}, kNow);
  EXPECT_THAT(Placements(schedule), ElementsAre("j3:small"));
  EXPECT_THAT(schedule.place[0].reason, HasSubstr("job j2 is not delayed by it"));
}

TEST(ScheduleTest, WithLimitsShortJobsGoBeforeAndLongOnesBesideTheHead) {
  const std::vector<ScheduleNode> nodes = Nodes(5);
  const ScheduleJob running = Limited(Running(Job(1, 3), 0, 3), absl::Minutes(10));
  const ScheduleJob head = Job(2, 4);
  Schedule schedule =
      PlaceJobs(nodes, {running, head, Limited(Job(3, 2), absl::Minutes(10))}, kNow);
  EXPECT_THAT(Placements(schedule), ElementsAre("j3:n3", "j3:n4"));
  EXPECT_EQ(schedule.waiting["j2"].until, kNow + absl::Minutes(10));
  // j3 would run for longer than the head waits, and there is only one node that the head leaves.
  schedule = PlaceJobs(nodes, {running, head, Limited(Job(3, 2), absl::Minutes(11))}, kNow);
  EXPECT_THAT(Placements(schedule), IsEmpty());
  EXPECT_EQ(schedule.waiting["j3"].reason, "its turn: job j2 is the next and needs what is free");
  schedule = PlaceJobs(nodes, {running, head, Job(3, 1)}, kNow);
  EXPECT_THAT(Placements(schedule), ElementsAre("j3:n4"));
}

TEST(ScheduleTest, AnElasticJobGetsWhatIsLeftInWholeUnits) {
  ScheduleJob job = Job(1, 2, 9);
  job.unit = 2;
  EXPECT_EQ(PlaceJobs(Nodes(7), {job}, kNow).place.size(), 6u);
  // A job does not grow while another waits that could be placed at some time.
  EXPECT_EQ(PlaceJobs(Nodes(7), {job, Job(2, 7)}, kNow).place.size(), 2u);
}

TEST(ScheduleTest, AnElasticJobGivesUpNoMoreThanTheHeadLacks) {
  const std::vector<ScheduleNode> nodes = Nodes(5);
  std::vector<ScheduleJob> jobs = {Running(Job(1, 1, 4), 0, 4), Job(2, 3)};
  Schedule schedule = PlaceJobs(nodes, jobs, kNow);
  EXPECT_THAT(Withdrawals(schedule), UnorderedElementsAre("j1:n2", "j1:n3"));
  EXPECT_THAT(schedule.withdraw[0].reason, "job j2 needs it");
  EXPECT_THAT(Placements(schedule), IsEmpty());
  // While nodes are being given up no more are asked for, and no other job gets them.
  jobs[0].held[2].ending = jobs[0].held[3].ending = true;
  jobs.push_back(Job(3, 1));
  schedule = PlaceJobs(nodes, jobs, kNow);
  EXPECT_THAT(Withdrawals(schedule), IsEmpty());
  EXPECT_THAT(Placements(schedule), IsEmpty());
  EXPECT_THAT(schedule.waiting["j2"].reason, HasSubstr("being given up"));
  jobs[0].held.resize(2);
  EXPECT_THAT(Placements(PlaceJobs(nodes, jobs, kNow)), ElementsAre("j2:n2", "j2:n3", "j2:n4"));
}

TEST(ScheduleTest, TheLeastImportantElasticJobGivesFirstAndOnlyIfThatIsEnough) {
  const std::vector<ScheduleNode> nodes = Nodes(6);
  const ScheduleJob important = Running(Job(1, 1, 3, 2), 0, 3);
  const ScheduleJob other = Running(Job(2, 1, 3, 1), 3, 3);
  EXPECT_THAT(Withdrawals(PlaceJobs(nodes, {important, other, Job(3, 2)}, kNow)),
              UnorderedElementsAre("j2:n4", "j2:n5"));
  EXPECT_THAT(Withdrawals(PlaceJobs(nodes, {important, other, Job(3, 5)}, kNow)), IsEmpty());
  // Only whole units are given up.
  ScheduleJob pairs = Running(Job(1, 2, 6), 0, 6);
  pairs.unit = 2;
  EXPECT_EQ(PlaceJobs(nodes, {pairs, Job(2, 1)}, kNow).withdraw.size(), 2u);
}

TEST(ScheduleTest, ARunningJobGrowsAgainUnlessItsSpecSaysNever) {
  ScheduleJob job = Running(Job(1, 1, 4), 0, 2);
  EXPECT_THAT(Placements(PlaceJobs(Nodes(3), {job}, kNow)), ElementsAre("j1:n2"));
  job.may_grow = false;
  EXPECT_THAT(Placements(PlaceJobs(Nodes(3), {job}, kNow)), IsEmpty());
}

TEST(ScheduleTest, AJobThatLostANodeGetsAnother) {
  std::vector<ScheduleNode> nodes = Nodes(3);
  nodes[1].closed = "drained";
  const Schedule schedule = PlaceJobs(nodes, {Running(Job(1, 2), 0, 1)}, kNow);
  EXPECT_THAT(Placements(schedule), ElementsAre("j1:n2"));
}

TEST(ScheduleTest, ClosedForeignAndAvoidedNodesAreLeftAlone) {
  std::vector<ScheduleNode> nodes = Nodes(4);
  nodes[0].closed = "drained";
  nodes[1].user = "bob";
  nodes[3].user = "alice";
  ScheduleJob job = Job(1, 1);
  job.avoid.insert("n2");
  EXPECT_THAT(Placements(PlaceJobs(nodes, {job}, kNow)), ElementsAre("j1:n3"));
}

TEST(ScheduleTest, AvoidedNodesAreTakenByAJobThatCouldNotRunWithoutThem) {
  ScheduleJob job = Job(1, 2);
  job.avoid = {"n1", "n2"};
  EXPECT_THAT(Placements(PlaceJobs(Nodes(4), {job}, kNow)), ElementsAre("j1:n0", "j1:n3"));
  EXPECT_THAT(Placements(PlaceJobs(Nodes(3), {job}, kNow)), testing::SizeIs(2));
}

TEST(ScheduleTest, AnUnfitNodeIsNeverTakenAndAJobThatHasNoOtherIsHopeless) {
  ScheduleJob job = Job(1, 1);
  job.unfit = {"n0"};
  EXPECT_THAT(Placements(PlaceJobs(Nodes(2), {job}, kNow)), ElementsAre("j1:n1"));
  // A node that is away may reconnect, and one that is in use becomes free.
  std::vector<ScheduleNode> nodes = Nodes(2);
  nodes[1].closed = "away";
  EXPECT_THAT(PlaceJobs(nodes, {job}, kNow).hopeless, IsEmpty());
  EXPECT_THAT(PlaceJobs(Nodes(2), {Running(Job(2, 1), 1, 1), job}, kNow).hopeless, IsEmpty());
  nodes[1].user = "bob";
  Schedule schedule = PlaceJobs(nodes, {job}, kNow);
  EXPECT_EQ(
      schedule.hopeless["j1"],
      "1 node with 4 CPUs: 0 of 2 can take it; n1 is for other users, n0 is avoided, since it "
      "could not begin there");
}

TEST(ScheduleTest, ANodeThatRestsForAJobIsOthersMeanwhileAndTheJobIsNotHopeless) {
  ScheduleJob job = Job(1, 1);
  job.avoid = job.backed_off = {"n0"};
  job.unfit = {"n1"};
  const Schedule schedule = PlaceJobs(Nodes(2), {job, Job(2, 1)}, kNow);
  EXPECT_THAT(Placements(schedule), ElementsAre("j2:n0"));
  EXPECT_THAT(schedule.hopeless, IsEmpty());
  EXPECT_EQ(schedule.waiting.at("j1").reason,
            "1 node with 4 CPUs: 0 of 2 can take it; n0 is tried again in a moment, n1 is avoided, "
            "since it could not begin there");
}

TEST(ScheduleTest, WhatIsMissingIsSaid) {
  ScheduleJob job = Job(1, 2);
  job.resources.set_gpus_per_worker(1);
  std::vector<ScheduleNode> nodes = Nodes(4, 8, 2);
  nodes[3].gpus = 4;
  EXPECT_EQ(
      PlaceJobs(nodes, {job}, kNow).waiting["j1"].reason,
      "2 nodes with 4 CPUs and 4 GPUs: 1 of 4 can take it; 3 are too small (the largest has 8 "
      "CPUs and 2 GPUs)");
  job.min = job.max = 1;
  ScheduleJob other = Job(2, 1, 1, 5);
  other.held = {{"n3", Share{2, 2, 2}, false}};
  EXPECT_EQ(
      PlaceJobs(nodes, {other, job}, kNow).waiting["j1"].reason,
      "1 node with 4 CPUs and 4 GPUs free: 0 are (another has 6 CPUs and 2 GPUs), and it is the "
      "next");
}

TEST(ScheduleTest, OfAJobThatHasNodesTheOthersAreSpokenOf) {
  std::vector<ScheduleNode> nodes = Nodes(4);
  for (ScheduleNode& node : nodes) node.closed = "drained";
  const auto waits = [&] {
    return PlaceJobs(nodes, {Running(Job(1, 3), 0, 2)}, kNow).waiting["j1"].reason;
  };
  EXPECT_EQ(waits(), "1 more node with 4 CPUs: 0 of the other 2 can take it; 2 are drained");
  nodes.pop_back();
  EXPECT_EQ(waits(), "1 more node with 4 CPUs: the only other one cannot take it; n2 is drained");
  nodes[2].closed = "";
  EXPECT_EQ(PlaceJobs(nodes, {Running(Job(1, 3), 0, 2), Running(Job(2, 1), 2, 1)}, kNow)
                .waiting["j1"]
                .reason,
            "1 more node with 4 CPUs free: 0 are, and it is the next");
  nodes.pop_back();
  EXPECT_EQ(waits(), "1 more node with 4 CPUs: the cluster has no other");
}

TEST(ScheduleTest, RootsJobsRunOnlyWhereAnAgentSaysSo) {
  std::vector<ScheduleNode> nodes = Nodes(2);
  ScheduleJob job = Job(1, 1);
  job.user = "root";
  EXPECT_EQ(PlaceJobs(nodes, {job}, kNow).waiting["j1"].reason,
            "1 node with 4 CPUs: 0 of 2 can take it; 2 are without --user root");
  nodes[1].user = "root";
  EXPECT_EQ(PlaceJobs(nodes, {job}, kNow).place.at(0).node, "n1");
}

TEST(ScheduleTest, ManyJobsThatCannotRunKeepNobodyWaiting) {
  std::vector<ScheduleJob> jobs;
  for (size_t i = 1; i <= kQueueDepth; ++i) jobs.push_back(Job(i, 99));
  jobs.push_back(Job(kQueueDepth + 1, 1));
  EXPECT_THAT(Placements(PlaceJobs(Nodes(1), jobs, kNow)), ElementsAre("j501:n0"));
}

TEST(ScheduleTest, GpusAreGivenWholeAndCpusBesideThem) {
  const std::vector<ScheduleNode> nodes = Nodes(2, 16, 4);
  std::vector<ScheduleJob> jobs = {Job(1, 2), Job(2, 2), Job(3, 2)};
  for (ScheduleJob& job : jobs) {
    job.workers.set_count(2);
    job.resources.set_gpus_per_worker(1);
  }
  const Schedule schedule = PlaceJobs(nodes, jobs, kNow);
  EXPECT_THAT(Placements(schedule), ElementsAre("j1:n0", "j1:n1", "j2:n0", "j2:n1"));
  EXPECT_EQ(schedule.head, "j3");
  // The CPUs are still free for others.
  jobs.push_back(Job(4, 1));
  jobs[2].workers.set_count(9);  // never fits
  EXPECT_EQ(PlaceJobs(nodes, jobs, kNow).place.back().job, "j4");
}

// Four workers and a launcher take 4 * gib_each + 1 GiB of a node.
ScheduleJob OfMemory(ScheduleJob job, uint64_t gib_each) {
  job.resources.set_memory_per_worker(gib_each * kGib);
  return job;
}

// Fault (queue): Two jobs whose limits of memory together exceed that of a node are submitted ->
// The second one waits until the first has ended
TEST(ScheduleTest, MemoryIsGivenOnceAndAJobThatDoesNotSayTakesNone) {
  const std::vector<ScheduleNode> nodes = NodesOfMemory(1, 64);
  std::vector<ScheduleJob> jobs = {OfMemory(Job(1, 1), 8), OfMemory(Job(2, 1), 8)};
  Schedule schedule = PlaceJobs(nodes, jobs, kNow);
  EXPECT_THAT(Placements(schedule), ElementsAre("j1:n0"));
  EXPECT_EQ(schedule.place[0].share.memory, 33 * kGib);
  EXPECT_EQ(
      schedule.waiting["j2"].reason,
      "1 node with 4 CPUs and 33 GiB of memory free: 0 are (another has 12 CPUs and 31 GiB of "
      "memory), and it is the next");
  EXPECT_THAT(Placements(PlaceJobs(nodes, {jobs[0], OfMemory(Job(2, 1), 7), Job(3, 1)}, kNow)),
              ElementsAre("j1:n0", "j2:n0", "j3:n0"));
  EXPECT_THAT(Placements(PlaceJobs(NodesOfMemory(1, 0), jobs, kNow)), ElementsAre("j1:n0", "j2:n0"))
      << "the node does not say how much it has";
}

TEST(ScheduleTest, NodesWithTooLittleMemoryAreTooSmall) {
  std::vector<ScheduleNode> nodes = NodesOfMemory(3, 64);
  nodes[1].memory /= 2;
  nodes[2].cpus = 2;
  Schedule schedule = PlaceJobs(nodes, {OfMemory(Job(1, 1), 32), Job(2, 1)}, kNow);
  EXPECT_EQ(
      schedule.waiting["j1"].reason,
      "1 node with 4 CPUs and 129 GiB of memory: 0 of 3 can take it; n2 is too small (it has 2 "
      "CPUs), 2 are too small (the largest has 64 GiB of memory)");
  EXPECT_THAT(Placements(schedule), ElementsAre("j2:n1")) << "the impossible one delays nobody";
  ScheduleJob whole = OfMemory(Job(1, 1), 32);
  whole.workers.set_kind(v1::WorkersPerNode::CPU);
  nodes.resize(1);
  EXPECT_EQ(
      PlaceJobs(nodes, {whole}, kNow).waiting["j1"].reason,
      "1 node with 1 CPU and 33 GiB of memory: 0 of 1 can take it; n0 is too small (it has 64 "
      "GiB of memory, and 16 workers there need 513 GiB)");
}

TEST(ScheduleTest, MemoryIsReservedForTheHead) {
  const std::vector<ScheduleNode> nodes = NodesOfMemory(1, 64);
  ScheduleJob running = Limited(OfMemory(Job(1, 1), 8), absl::Minutes(10));
  running.held = {{"n0", Share{4, 4, 0, 33 * kGib}, false}};
  running.ends = kNow + absl::Minutes(10);
  const ScheduleJob head = OfMemory(Job(2, 1), 12);
  // 64 GiB less 49 for the head leave 15.
  const Schedule schedule =
      PlaceJobs(nodes, {running, head, OfMemory(Job(3, 1), 4), OfMemory(Job(4, 1), 3)}, kNow);
  EXPECT_THAT(Placements(schedule), ElementsAre("j4:n0"));
  EXPECT_EQ(schedule.waiting.at("j2").until, kNow + absl::Minutes(10));
  // What ends in time may have all that is free.
  EXPECT_THAT(
      Placements(PlaceJobs(
          nodes, {running, head, Limited(OfMemory(Job(3, 1), 7), absl::Minutes(10))}, kNow)),
      ElementsAre("j3:n0"));
}

TEST(ScheduleTest, AnAgentThatCameBackWithLessMemoryTakesJobsThatNeedNone) {
  ScheduleJob running = OfMemory(Job(1, 1), 8);
  running.held = {{"n0", Share{4, 4, 0, 33 * kGib}, false}};
  EXPECT_THAT(Placements(PlaceJobs(NodesOfMemory(1, 16),
                                   {running, OfMemory(Job(2, 1), 1), Job(3, 1)}, kNow)),
              IsEmpty());
  EXPECT_THAT(Placements(PlaceJobs(NodesOfMemory(1, 16), {running, Job(3, 1)}, kNow)),
              ElementsAre("j3:n0"));
}

TEST(ScheduleTest, MemoryThatNoMachineHasDoesNotOverflow) {
  std::vector<ScheduleJob> jobs;
  for (int i = 1; i <= 4; ++i) {
    jobs.push_back(Job(i, 1));
    jobs.back().resources.set_memory_per_worker(UINT64_MAX);
  }
  EXPECT_EQ(PlaceJobs(NodesOfMemory(1, 0), jobs, kNow).place.size(), 4u);
  EXPECT_THAT(Placements(PlaceJobs(NodesOfMemory(1, 65536), jobs, kNow)), IsEmpty());
}

TEST(ScheduleTest, OfNodesAlikeThatWithTheLeastMemoryLeftIsTaken) {
  std::vector<ScheduleNode> nodes = NodesOfMemory(3, 64);
  nodes[0].memory = 0;
  nodes[2].memory /= 2;
  EXPECT_THAT(Placements(PlaceJobs(nodes, {OfMemory(Job(1, 1), 4)}, kNow)), ElementsAre("j1:n2"));
  EXPECT_THAT(Placements(PlaceJobs(nodes, {OfMemory(Job(1, 1), 8)}, kNow)), ElementsAre("j1:n1"));
}

TEST(NodeShapesTest, MemoryOfANodeAndWhatOfItStaysTakenAreCounted) {
  const ScheduleJob job = OfMemory(Job(1, 2), 8);
  EXPECT_EQ(NodeShapes(NodesOfMemory(3, 33), {}).Fitting(job), 3u);
  EXPECT_EQ(NodeShapes(NodesOfMemory(3, 32), {}).Fitting(job), 0u);
  const HeldShare held = {"n1", Share{1, 1, 0, 2 * kGib}, true, true};
  EXPECT_EQ(NodeShapes(NodesOfMemory(3, 34), {held}).Fitting(job), 2u);
  EXPECT_EQ(NodeShapes(NodesOfMemory(3, 0), {held}).Fitting(job), 3u);
}

TEST(ScheduleTest, ShareOfANode) {
  ScheduleJob job = Job(1, 1);
  const ScheduleNode node = Nodes(1, 16, 4)[0];
  job.workers.set_kind(v1::WorkersPerNode::GPU);
  job.resources.set_gpus_per_worker(2);
  job.resources.set_cpus_per_worker(3);
  Share share = *ShareOf(job, node);
  EXPECT_THAT(std::make_tuple(share.workers, share.cpus, share.gpus), std::make_tuple(2u, 6u, 4u));
  EXPECT_FALSE(ShareOf(job, Nodes(1, 16, 1)[0]).has_value());
  job.resources.clear_gpus_per_worker();
  job.workers.set_kind(v1::WorkersPerNode::AUTO);
  EXPECT_EQ(ShareOf(job, node)->workers, 4u);
  EXPECT_EQ(ShareOf(job, Nodes(1, 16)[0])->workers, 5u);
  job.workers.set_kind(v1::WorkersPerNode::COUNT);
  EXPECT_FALSE(ShareOf(job, Nodes(1, 11)[0]).has_value());  // 4 x 3
  EXPECT_EQ(ShareText(Share{2, 4, 0, 0}), "4 CPUs");
  EXPECT_EQ(ShareText(Share{2, 4, 1, 0}), "4 CPUs and 1 GPU");
  EXPECT_EQ(ShareText(Share{2, 4, 1, 9 * kGib}), "4 CPUs, 1 GPU and 9 GiB of memory");
}

TEST(ScheduleTest, SpreadsAndPacksByLabel) {
  std::vector<ScheduleNode> nodes = Nodes(6);
  for (size_t i = 0; i < nodes.size(); ++i) nodes[i].labels["switch"] = i < 4 ? "a" : "b";
  ScheduleJob job = Job(1, 2);
  job.spread_over = "switch";
  EXPECT_THAT(Placements(PlaceJobs(nodes, {job}, kNow)), UnorderedElementsAre("j1:n0", "j1:n4"));
  job.spread_over.clear();
  job.pack = "switch";
  EXPECT_THAT(Placements(PlaceJobs(nodes, {job}, kNow)), UnorderedElementsAre("j1:n4", "j1:n5"));
}

// Returns nodes 0, 1, ... of these groups, all alike.
std::vector<NodeCandidate> Nodes(const std::vector<std::string>& groups) {
  std::vector<NodeCandidate> nodes;
  for (size_t i = 0; i < groups.size(); ++i) nodes.push_back({i, groups[i], 0, 0});
  return nodes;
}

TEST(NodeChoiceTest, AllOrNone) {
  EXPECT_THAT(ChooseNodes(Nodes({"", ""}), {}, NodeLayout::kTight, 3), IsEmpty());
  EXPECT_THAT(ChooseNodes(Nodes({"", ""}), {}, NodeLayout::kSpread, 3), IsEmpty());
  EXPECT_THAT(ChooseNodes(Nodes({"", ""}), {}, NodeLayout::kPacked, 3), IsEmpty());
  EXPECT_THAT(ChooseNodes(Nodes({"", ""}), {}, NodeLayout::kTight, 2), ElementsAre(0, 1));
}

TEST(NodeChoiceTest, TheNodesWithLeastLeftOverComeFirstAndGpusAreSpared) {
  const std::vector<NodeCandidate> nodes = {{0, "", 8, 0}, {1, "", 0, 7}, {2, "", 0, 3}};
  EXPECT_THAT(ChooseNodes(nodes, {}, NodeLayout::kTight, 2), ElementsAre(2, 1));
}

TEST(NodeChoiceTest, SpreadsOverGroupsAndCountsWhatIsHeld) {
  EXPECT_THAT(ChooseNodes(Nodes({"a", "a", "a", "b", "c"}), {}, NodeLayout::kSpread, 3),
              UnorderedElementsAre(0, 3, 4));
  EXPECT_THAT(ChooseNodes(Nodes({"a", "a", "a", "b"}), {}, NodeLayout::kSpread, 3),
              UnorderedElementsAre(0, 1, 3));
  EXPECT_THAT(ChooseNodes(Nodes({"a", "a", "b"}), {"a"}, NodeLayout::kSpread, 1), ElementsAre(2));
}

TEST(NodeChoiceTest, PacksIntoTheSmallestGroupThatHoldsAllOfIt) {
  EXPECT_THAT(ChooseNodes(Nodes({"a", "a", "a", "b", "b", "c"}), {}, NodeLayout::kPacked, 2),
              ElementsAre(3, 4));
  // No group is large enough: the largest is taken, and for the rest the smallest that is.
  EXPECT_THAT(ChooseNodes(Nodes({"a", "a", "a", "b", "b", "c"}), {}, NodeLayout::kPacked, 4),
              ElementsAre(0, 1, 2, 5));
  EXPECT_THAT(ChooseNodes(Nodes({"a", "a", "a", "c"}), {"c"}, NodeLayout::kPacked, 2),
              ElementsAre(3, 0));
}

}  // namespace

}  // namespace cadre::cluster
