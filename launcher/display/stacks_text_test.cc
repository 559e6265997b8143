#include "launcher/display/stacks_text.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

v1::StackGroup GroupOf(const std::vector<uint32_t>& ranks) {
  v1::StackGroup group;
  for (const uint32_t rank : ranks) group.add_ranks(rank);
  return group;
}

void AddFrame(const char* file, uint32_t line, const char* function, const char* source,
              v1::RankStack* stack) {
  v1::StackFrame* frame = stack->add_frames();
  frame->set_file(file);
  frame->set_line(line);
  frame->set_function(function);
  frame->set_own(*source != '\0');
  frame->set_source(source);
}

TEST(StacksText, RanksAreRuns) {
  EXPECT_EQ(RanksText(GroupOf({3})), "3");
  EXPECT_EQ(RanksText(GroupOf({0, 1, 2, 5, 7, 8})), "0-2,5,7-8");
  EXPECT_EQ(RanksText(GroupOf({})), "");
}

TEST(StacksText, ALineForEachPlace) {
  v1::GetStacksReply reply;
  reply.set_world_size(3);
  v1::StackGroup* waits = reply.add_groups();
  *waits = GroupOf({0, 2});
  waits->mutable_first()->mutable_evidence()->set_python(v1::IN_COLLECTIVE);
  waits->mutable_first()->mutable_evidence()->set_python_what("all_reduce");
  waits->mutable_first()->mutable_evidence()->set_python_where("train.py:40 in main");
  v1::StackGroup* native = reply.add_groups();
  *native = GroupOf({1});
  native->mutable_first()->mutable_evidence()->set_node("n1");
  native->mutable_first()->mutable_evidence()->set_pid(17);
  native->mutable_first()->mutable_evidence()->set_summary("pid 17: sleeping (state S)");
  v1::StackGroup* several = reply.add_groups();
  *several = reply.groups(1);
  *several->mutable_ranks() = GroupOf({4, 5}).ranks();
  v1::SilentNode* silent = reply.add_silent();
  silent->set_node("n2");
  silent->set_first_rank(3);
  silent->set_workers(1);
  silent->set_why("has gone");
  EXPECT_EQ(PlacesText(reply),
            "  ranks 0,2 (2 of 3): in all_reduce, from train.py:40 in main\n"
            "  rank 1: pid 17: sleeping (state S)\n"
            "  ranks 4-5 (2 of 3): the first is pid 17: sleeping (state S)\n"
            "node n2 (rank 3): has gone\n");
}

TEST(StacksText, GroupsThenNodesThatAreSilent) {
  v1::GetStacksReply reply;
  reply.set_job("train");
  reply.set_generation(2);
  reply.set_world_size(8);
  v1::StackGroup* waits = reply.add_groups();
  *waits = GroupOf({0, 1, 2, 5});
  waits->mutable_first()->mutable_evidence()->set_python(v1::IN_COLLECTIVE);
  waits->mutable_first()->mutable_evidence()->set_python_what("all_reduce");
  waits->mutable_first()->mutable_evidence()->set_python_where("train.py:40 in main");
  AddFrame("/v/lib/python3.11/site-packages/torch/distributed/c10d.py", 9, "all_reduce", "",
           waits->mutable_first());
  AddFrame("/home/me/train.py", 40, "main", "dist.all_reduce(batch)", waits->mutable_first());
  waits->mutable_first()->set_cut(true);
  v1::StackGroup* native = reply.add_groups();
  *native = GroupOf({3});
  native->mutable_first()->mutable_evidence()->set_node("n1");
  native->mutable_first()->mutable_evidence()->set_pid(17);
  native->mutable_first()->mutable_evidence()->set_summary("pid 17: sleeping (state S)");
  native->mutable_first()->set_no_python("it is no Python program");
  v1::SilentNode* silent = reply.add_silent();
  silent->set_node("n2");
  silent->set_first_rank(6);
  silent->set_workers(2);
  silent->set_why("has gone");
  reply.set_silent_left_out(4);
  EXPECT_EQ(StacksText(reply),
            "job train, generation 2, 8 ranks; the most recent call comes first\n"
            "\n"
            "ranks 0-2,5 (4 of 8): in all_reduce, from train.py:40 in main\n"
            "    torch/distributed/c10d.py:9 in all_reduce\n"
            "  > /home/me/train.py:40 in main\n"
            "        dist.all_reduce(batch)\n"
            "    ... and the calls further out\n"
            "\n"
            "rank 3 on n1, pid 17: no Python stack\n"
            "    (it is no Python program)\n"
            "    pid 17: sleeping (state S)\n"
            "\n"
            "node n2 (ranks 6-7): has gone\n"
            "and 4 more nodes\n");
}

TEST(StacksText, SaysWhatAnInterpreterDoes) {
  v1::GetStacksReply reply;
  const auto says = [&](v1::PythonActivity activity, const char* what, const char* where) {
    reply.clear_groups();
    *reply.add_groups() = GroupOf({0});
    v1::RankEvidence* evidence = reply.mutable_groups(0)->mutable_first()->mutable_evidence();
    evidence->set_python(activity);
    evidence->set_python_what(what);
    evidence->set_python_where(where);
    return StacksText(reply);
  };
  EXPECT_THAT(says(v1::IN_DATA_LOADER, "time.sleep(9)", "data.py:3 in get"),
              HasSubstr(": in the data loader: time.sleep(9), from data.py:3 in get\n"));
  EXPECT_THAT(says(v1::IN_DATA_LOADER, "", ""), HasSubstr(": in the data loader\n"));
  EXPECT_THAT(says(v1::IMPORTING, "x", "train.py:1 in <module>"),
              HasSubstr(": importing modules, from train.py:1 in <module>\n"));
  EXPECT_THAT(says(v1::IN_OWN_CODE, "while True:", "train.py:7 in main"),
              HasSubstr(": at train.py:7 in main\n"));
  EXPECT_THAT(says(v1::IN_OWN_CODE, "wait", ""), HasSubstr(": at wait\n"));
}

TEST(StacksText, TheTextOfOneRankIsMadeSafe) {
  v1::GetStacksReply reply;
  *reply.add_groups() = GroupOf({0});
  reply.mutable_groups(0)->mutable_first()->set_text("== process 3\n\x1b[2Jx\n");
  EXPECT_THAT(StacksText(reply), HasSubstr("\n== process 3\n\\x1b[2Jx\n"));
}

}  // namespace
}  // namespace cadre::launcher
