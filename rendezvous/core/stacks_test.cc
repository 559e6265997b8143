#include "rendezvous/core/stacks.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/testing/core_rig.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StackSourcesTest : public CoreRig {
 protected:
  absl::StatusOr<StackSources> Find(int rank = -1, const std::string& job = "train") {
    v1::GetStacksRequest request;
    request.set_job(job);
    request.mutable_question()->set_one_rank(rank >= 0);
    request.mutable_question()->set_rank(static_cast<uint32_t>(rank));
    return core_.FindStacks(request);
  }
  // "a 0+2 on 1".
  static std::vector<std::string> Lines(const absl::StatusOr<StackSources>& sources) {
    if (!sources.ok()) return {sources.status().ToString()};
    std::vector<std::string> lines;
    for (const StackSources::Node& node : sources->nodes) {
      lines.push_back(
          absl::StrCat(node.member.node(), " ", node.member.first_rank(), "+", node.member.slots(),
                       node.stream.has_value() ? absl::StrCat(" on ", node.stream->value) : ""));
    }
    return lines;
  }
};

TEST_F(StackSourcesTest, AreTheNodesOfTheGenerationThatRuns) {
  const v1::JobSpec spec = SpecOf("train", 2, 2, 0);
  Join(1, spec, "a", 2);
  EXPECT_THAT(Find(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("job train is gathering: none of its workers runs")));
  Join(2, spec, "b", 3);
  EXPECT_THAT(Lines(Find()), ElementsAre("a 0+2 on 1", "b 2+3 on 2"));
  EXPECT_EQ(Find()->generation, 1u);
  EXPECT_EQ(Find()->world_size, 5u);
  Step(StreamClosed{StreamId{2}});
  EXPECT_THAT(Lines(Find()), ElementsAre("a 0+2 on 1", "b 2+3"));
}

TEST_F(StackSourcesTest, OfOneRankItsNode) {
  const v1::JobSpec spec = SpecOf("train", 2, 2, 0);
  Join(1, spec, "a", 2);
  Join(2, spec, "b", 3);
  EXPECT_THAT(Lines(Find(1)), ElementsAre("a 0+2 on 1"));
  EXPECT_THAT(Lines(Find(2)), ElementsAre("b 2+3 on 2"));
  EXPECT_THAT(Find(5), StatusIs(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("no rank 5; generation 1 has 5 workers")));
}

TEST_F(StackSourcesTest, OfAJobThatIsNotThereOrHasEnded) {
  EXPECT_THAT(Find(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no job train")));
  EXPECT_THAT(Find(-1, "x\x1b"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("\\x1b")));
  Join(1, SpecOf("train", 1, 1, 0), "a");
  Step(JobCancelled{"train", "enough", 0});
  Send(1, StoppedFrom({"train", "a", 1, 1}));
  EXPECT_THAT(Find(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("job train has ended (cancelled)")));
}

saved::Member MemberOf(const std::string& node, uint32_t first_rank, uint32_t slots) {
  saved::Member member;
  member.set_node(node);
  member.set_first_rank(first_rank);
  member.set_slots(slots);
  return member;
}

v1::RankStack Python(int local_rank, const std::string& what, uint32_t line) {
  v1::RankStack stack;
  stack.mutable_evidence()->set_local_rank(local_rank);
  stack.mutable_evidence()->set_pid(100 + local_rank);
  stack.mutable_evidence()->set_python(v1::IN_COLLECTIVE);
  stack.mutable_evidence()->set_python_what(what);
  v1::StackFrame* frame = stack.add_frames();
  frame->set_file("train.py");
  frame->set_line(line);
  frame->set_function("main");
  frame->set_own(true);
  return stack;
}

v1::RankStack Native(int local_rank, const std::string& state, const std::string& wchan) {
  v1::RankStack stack;
  stack.mutable_evidence()->set_local_rank(local_rank);
  stack.mutable_evidence()->set_state(state);
  stack.mutable_evidence()->set_wchan(wchan);
  stack.set_no_python("it is no Python program");
  return stack;
}

// "0 2: all_reduce", largest first.
std::vector<std::string> Lines(StackGroups groups) {
  std::vector<std::string> lines;
  for (const v1::StackGroup& group : groups.Take()) {
    std::string line;
    for (const uint32_t rank : group.ranks()) absl::StrAppend(&line, rank, " ");
    EXPECT_EQ(static_cast<uint32_t>(group.first().evidence().rank()), group.ranks(0));
    lines.push_back(absl::StrCat(line, "on ", group.first().evidence().node(), ": ",
                                 group.first().evidence().python_what(),
                                 group.first().evidence().state()));
  }
  return lines;
}

TEST(StackGroups, RanksAtTheSameLinesAreOneGroup_OfSeveralNodes) {
  const saved::Member a = MemberOf("a", 0, 2), b = MemberOf("b", 2, 3);
  StackGroups groups;
  EXPECT_TRUE(groups.empty());
  // Nodes answer in any order; the lowest rank stands for its group.
  groups.Add(b, Python(0, "all_reduce", 40));
  groups.Add(b, Python(1, "barrier", 44));
  groups.Add(b, Python(2, "all_reduce", 40));
  groups.Add(a, Python(0, "all_reduce", 40));
  groups.Add(a, Python(1, "all_reduce", 41));
  EXPECT_FALSE(groups.empty());
  EXPECT_THAT(Lines(std::move(groups)),
              ElementsAre("0 2 4 on a: all_reduce", "1 on a: all_reduce", "3 on b: barrier"));
}

TEST(StackGroups, WithoutAnInterpreterTheyGoByWhatTheKernelTells) {
  const saved::Member member = MemberOf("a", 0, 8);
  StackGroups groups;
  groups.Add(member, Native(0, "S", "futex"));
  groups.Add(member, Native(1, "R", "futex"));
  groups.Add(member, Native(2, "T", "futex"));
  groups.Add(member, Native(3, "S", "poll"));
  v1::RankStack waits = Native(4, "S", "futex");
  waits.mutable_evidence()->set_phase(v1::WAITING);
  waits.mutable_evidence()->set_bucket(2);
  groups.Add(member, waits);
  EXPECT_THAT(Lines(std::move(groups)),
              ElementsAre("0 1 on a: S", "2 on a: T", "3 on a: S", "4 on a: S"));
}

TEST(StackGroups, BusyOrAsleepInTheSameCallsIsTheSame) {
  const saved::Member member = MemberOf("a", 0, 2);
  StackGroups groups;
  for (int i = 0; i < 2; ++i) {
    v1::RankStack stack = Python(i, "all_reduce", 40);
    stack.mutable_evidence()->set_state(i == 0 ? "R" : "S");
    groups.Add(member, stack);
  }
  EXPECT_EQ(groups.Take().size(), 1);
}

TEST(StackGroups, ANodeTellsOfItsOwnRanksAlone_AndOfEachOnce) {
  const saved::Member member = MemberOf("a", 4, 2);
  StackGroups groups;
  for (const int local_rank : {-1, 0, 1, 2, 1}) {
    groups.Add(member, Python(local_rank, "all_reduce", 40));
  }
  v1::RankStack forged = Python(1, "barrier", 1);
  forged.mutable_evidence()->set_rank(0);
  groups.Add(member, forged);
  EXPECT_THAT(Lines(std::move(groups)), ElementsAre("4 5 on a: all_reduce"));
}

TEST(StackGroups, WhatANodeSaysReachesNoTerminalAsItIs) {
  v1::RankStack stack = Python(0, "all\x1b[2J", 40);
  stack.mutable_frames(0)->set_function("main\nrm");
  stack.mutable_frames(0)->set_source("\x07");
  stack.set_no_python("\x1b");
  stack.mutable_evidence()->set_last_lines("output");
  StackGroups groups;
  groups.Add(MemberOf("a", 0, 1), stack);
  const v1::RankStack said = groups.Take()[0].first();
  EXPECT_EQ(said.evidence().python_what(), "all\\x1b[2J");
  EXPECT_EQ(said.evidence().last_lines(), "");
  EXPECT_EQ(said.frames(0).function(), "main\\nrm");
  EXPECT_EQ(said.frames(0).source(), "\\x07");
  EXPECT_EQ(said.no_python(), "\\x1b");
}

TEST(StackGroups, AreBounded) {
  constexpr uint32_t kRanks = 400;
  const saved::Member member = MemberOf("a", 0, kRanks);
  StackGroups groups;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    v1::RankStack stack = Python(static_cast<int>(rank), "all_reduce", rank);
    for (int i = 0; i < 2 * kMaxGroupedFrames; ++i) {
      stack.add_frames()->set_file(std::string(1000, 'x'));
    }
    groups.Add(member, stack);
  }
  const auto taken = groups.Take();
  size_t bytes = 0, ranks = 0;
  for (const v1::StackGroup& group : taken) {
    bytes += group.ByteSizeLong();
    ranks += static_cast<size_t>(group.ranks_size());
    EXPECT_LE(group.first().frames_size(), kMaxGroupedFrames);
  }
  EXPECT_LT(bytes, kMaxStackGroupsBytes + (8 << 10));
  EXPECT_EQ(ranks, kRanks);
  EXPECT_GT(taken.size(), 10);
  EXPECT_THAT(taken[0].first().no_python(), HasSubstr("too many different stacks"));
  EXPECT_TRUE(taken[1].first().cut());
}

}  // namespace

}  // namespace cadre
