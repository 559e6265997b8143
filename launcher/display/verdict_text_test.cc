#include "launcher/display/verdict_text.h"

#include <cerrno>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

VerdictStyle Style(bool color = false) { return {"/logs", absl::UTCTimeZone(), color}; }

v1::Verdict Failed() {
  v1::Verdict verdict;
  verdict.set_job("mnist");
  verdict.set_outcome(v1::FAILED);
  verdict.set_message("rank 3 failed");
  verdict.set_restarts(1);
  verdict.set_generations(2);
  v1::Failure& root = *verdict.mutable_root_cause();
  root.set_cause(v1::CRASH);
  root.set_rank(3);
  root.set_local_rank(1);
  root.set_node("node1");
  root.set_generation(2);
  root.set_unix_ms(1700000000123);
  root.mutable_exit()->set_signal(9);
  root.mutable_exit()->set_pid(4711);
  root.mutable_exit()->set_last_lines("one\ntwo \x1b[31mred\n");
  return verdict;
}

TEST(VerdictTextTest, Failure_NamesRankHostSignalPidAndLogs) {
  const std::string text = VerdictText(Failed(), Style());
  for (const char* expected :
       {"job mnist failed", "rank 3 (local rank 1) on node1", "signal 9 (SIGKILL)", "4711",
        "2023-11-14_22:13:20.123", "/logs/mnist/generation_2/rank_3/", "crash, generation 2",
        "    | one\n", "two \\x1b[31mred", "After 1 restart, 2 generations."}) {
    EXPECT_THAT(text, HasSubstr(expected));
  }
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST(VerdictTextTest, Names_CannotSpeakToTheTerminal) {
  v1::Verdict verdict = Failed();
  verdict.set_job("a\x1b[2J");
  EXPECT_THAT(VerdictText(verdict, Style()), Not(HasSubstr("\x1b")));
}

TEST(VerdictTextTest, AJobThatNeverBegan_SaysNothingOfExecutionsAndGenerations) {
  v1::Verdict verdict;
  verdict.set_job("mnist");
  verdict.set_outcome(v1::FAILED);
  verdict.set_message("no node is left for it");
  verdict.mutable_root_cause()->set_cause(v1::EXEC_FAILED);
  verdict.mutable_root_cause()->set_rank(-1);
  const std::string text = VerdictText(verdict, Style());
  EXPECT_THAT(text, HasSubstr("  cause      could not begin\n"));
  EXPECT_THAT(text, Not(HasSubstr("exec")));
}

TEST(VerdictTextTest, AProgramThatCannotBeStarted_IsNamed) {
  v1::Verdict verdict = Failed();
  v1::Failure& root = *verdict.mutable_root_cause();
  root.set_cause(v1::EXEC_FAILED);
  root.mutable_exit()->set_exec_errno(2);
  root.set_message("rank 3 on node1: cannot start ./x: No such file or directory");
  EXPECT_THAT(VerdictText(verdict, Style()),
              AllOf(HasSubstr("failure): rank 3 on node1: cannot start ./x: No such file"),
                    HasSubstr("  cause      could not be started")));
}

TEST(VerdictTextTest, APortThatIsTaken_IsNoProgramThatCannotBeExecuted) {
  v1::Verdict verdict = Failed();
  v1::Failure& root = *verdict.mutable_root_cause();
  root.set_cause(v1::EXEC_FAILED);
  root.mutable_exit()->set_exec_errno(EADDRINUSE);
  root.set_message("MASTER_PORT 4711 is taken on node1");
  EXPECT_THAT(VerdictText(verdict, Style()), HasSubstr("  cause      port taken, generation 2\n"));
}

// If node 1 was given an old file, this is the only hint.
TEST(VerdictTextTest, WhatTheNodesDifferIn_IsEvidenceOfNoRank) {
  v1::Verdict verdict = Failed();
  v1::Failure& root = *verdict.mutable_root_cause();
  v1::RankEvidence differ;
  differ.set_rank(-1);
  differ.set_summary("the nodes run different commands: ./new on node0; ./old on node1");
  const std::string line = "  difference the nodes run different commands: ./new on node0; ./old";
  *root.add_evidence() = differ;
  EXPECT_THAT(VerdictText(verdict, Style()),
              testing::AllOf(HasSubstr(line), Not(HasSubstr("where ranks were"))));
  root.mutable_evidence(0)->set_rank(3);
  root.mutable_evidence(0)->set_summary("waits for rank 1");
  *root.add_evidence() = differ;
  EXPECT_THAT(VerdictText(verdict, Style()),
              testing::AllOf(HasSubstr(line), HasSubstr("    rank 3 on , waits for rank 1\n"),
                             Not(HasSubstr("rank -1"))));
}

TEST(VerdictTextTest, Hang_SaysThatThereWasNoProgressInPlaceOfAnExitCode) {
  v1::Verdict verdict = Failed();
  v1::Failure& root = *verdict.mutable_root_cause();
  root.set_cause(v1::HANG);
  root.mutable_exit()->clear_signal();
  root.set_message("rank 3 on node1 made no progress for 5s");
  const std::string text = VerdictText(verdict, Style());
  EXPECT_THAT(text, HasSubstr("failure): rank 3 on node1 made no progress for 5s\n"));
  EXPECT_THAT(text, Not(HasSubstr("exited")));
  root.clear_message();
  EXPECT_THAT(VerdictText(verdict, Style()),
              HasSubstr("rank 3 (local rank 1) on node1 made no progress\n"));
}

TEST(VerdictTextTest, ARankThatEndedInOrderTooEarly_IsNamedWithThoseThatLostIt) {
  v1::Verdict verdict = Failed();
  verdict.mutable_root_cause()->clear_exit();
  verdict.mutable_root_cause()->mutable_exit();
  verdict.mutable_root_cause()->set_message("rank 3 ended with exit code 0; rank 0 lost it");
  EXPECT_THAT(VerdictText(verdict, Style()),
              HasSubstr("failure): rank 3 ended with exit code 0; rank 0 lost it\n"));
}

TEST(VerdictTextTest, ErrorFile_IsShownInPlaceOfTheLastLines) {
  v1::Verdict verdict = Failed();
  verdict.mutable_root_cause()->mutable_exit()->set_error_json(
      R"x({"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "Traceback:\n  f()"}}})x");
  const std::string text = VerdictText(verdict, Style());
  EXPECT_THAT(text, HasSubstr("    | Traceback:\n    |   f()\n"));
  EXPECT_THAT(text, Not(HasSubstr("| one")));
}

TEST(VerdictTextTest, ErrorFileForms) {
  EXPECT_EQ(ErrorFileText(R"({"message": "plain", "timestamp": 3})"), "plain");
  EXPECT_EQ(ErrorFileText(R"({"message": {"message": "E: x"}})"), "E: x");
  for (const char* odd : {"", "[", "[]", "{}", R"({"message": 3})", R"({"message": {}})"}) {
    EXPECT_EQ(ErrorFileText(odd), "") << odd;
  }
}

TEST(VerdictTextTest, NodeFailure_HasNoWorker) {
  v1::Verdict verdict = Failed();
  verdict.mutable_root_cause()->clear_exit();
  verdict.mutable_root_cause()->set_rank(-1);
  verdict.mutable_root_cause()->set_local_rank(-1);
  verdict.mutable_root_cause()->set_cause(v1::NODE_LOST);
  const std::string text = VerdictText(verdict, Style());
  EXPECT_THAT(text, HasSubstr("failure): node node1\n"));
  EXPECT_THAT(text, HasSubstr("node lost"));
  EXPECT_THAT(text, Not(HasSubstr("/logs")));
}

TEST(VerdictTextTest, Cancelled_IsOneLine) {
  v1::Verdict verdict = Failed();
  verdict.set_outcome(v1::CANCELLED_PHASE);
  verdict.set_message("SIGINT at node n0");
  verdict.set_restarts(0);
  EXPECT_EQ(VerdictText(verdict, Style()), "cadre: job mnist was cancelled: SIGINT at node n0\n");
}

TEST(VerdictTextTest, Cancelled_ForNoReason) {
  v1::Verdict verdict;
  verdict.set_outcome(v1::CANCELLED_PHASE);
  EXPECT_EQ(OutcomeText(verdict), "was cancelled");
}

TEST(VerdictTextTest, Failure_IsSaidOnce) {
  v1::Verdict verdict = Failed();
  v1::Failure& root = *verdict.mutable_root_cause();
  root.set_message(
      "rank 3 (local rank 1) on node1 was killed by signal 9 (SIGKILL) in generation 2");
  verdict.set_message(root.message() + "; restarts used: 1 of 1");
  const std::string text = VerdictText(verdict, Style());
  EXPECT_THAT(text, ::testing::StartsWith("cadre: job mnist failed: rank 3 (local rank 1) on node1 "
                                          "was killed by signal 9 (SIGKILL) in generation 2; "
                                          "restarts used: 1 of 1\n  time "));
  EXPECT_EQ(text.find("SIGKILL"), text.rfind("SIGKILL"));
}

TEST(VerdictTextTest, Color_TheFirstLineAndTheUsersOwnStandOut) {
  v1::Verdict verdict = Failed();
  verdict.mutable_root_cause()->mutable_exit()->set_last_lines(
      "  File \"/me/train.py\", line 3, in main\n    step()\n"
      "  File \"/v/lib/python3.11/site-packages/torch/x.py\", line 9, in f\n    f()\n");
  const std::string text = VerdictText(verdict, Style(true));
  EXPECT_THAT(text,
              ::testing::StartsWith("\x1b[1;31mcadre: job mnist failed: rank 3 failed\x1b[0m\n"));
  EXPECT_THAT(text, HasSubstr("| \x1b[1m  File \"/me/train.py\", line 3, in main\x1b[0m\n"));
  EXPECT_THAT(text, HasSubstr("| \x1b[1m    step()\x1b[0m\n"));
  EXPECT_THAT(text, HasSubstr("|   File \"/v/lib"));
}

// The line about how it ended contains the place.
TEST(VerdictTextTest, WhereAProgramEndedItselfIsInItsLineAlone) {
  v1::Verdict verdict = Failed();
  v1::Failure& root = *verdict.mutable_root_cause();
  root.mutable_exit()->clear_signal();
  root.mutable_exit()->set_exit_code(3);
  v1::RankEvidence& at = *root.add_evidence();
  at.set_python(v1::IN_OWN_CODE);
  at.set_python_what("sys.exit(3)");
  at.set_python_where("train.py:8 in main");
  at.set_summary("gone");
  const std::string text = VerdictText(verdict, Style());
  EXPECT_THAT(text, HasSubstr("exited with status 3 at sys.exit(3) (train.py:8 in main)\n"));
  EXPECT_THAT(text, Not(HasSubstr("where ranks were")));
}

TEST(VerdictTextTest, Success_SaysHowFarItCame) {
  v1::Timeline timeline;
  timeline.add_progress()->set_step(10);
  timeline.add_progress()->set_step(420);
  timeline.mutable_progress(1)->set_loss(0.125);
  v1::Verdict verdict;
  verdict.set_job("a");
  verdict.set_restarts(1);
  EXPECT_EQ(SuccessText(verdict, timeline, false),
            "cadre: job a succeeded; step 420, loss 0.1250; 1 restart\n");
  EXPECT_EQ(SuccessText(verdict, v1::Timeline(), true),
            "\x1b[1;32mcadre: job a succeeded; 1 restart\x1b[0m\n");
}

TEST(VerdictTextTest, Success_SaysHowLongWorkersRan) {
  v1::Timeline timeline;
  v1::GenerationTimeline& g = *timeline.add_generations();
  g.set_generation(1);
  g.set_formed_us(10000);
  g.set_running_us(30000);
  g.set_stopped_us(1035000);
  v1::Verdict verdict;
  verdict.set_job("a");
  EXPECT_EQ(SuccessText(verdict, timeline, false),
            "cadre: job a succeeded in 1.035s, of which workers ran 1.005s\n");
}

TEST(VerdictTextTest, EarlierFailures_EightAtMost) {
  v1::Verdict verdict = Failed();
  for (int i = 1; i <= 9; ++i) {
    verdict.add_earlier()->set_message("rank 1 died in generation " + std::to_string(i));
  }
  const std::string text = VerdictText(verdict, Style());
  EXPECT_THAT(text, HasSubstr("Earlier failures:\n  rank 1 died in generation 1\n"));
  EXPECT_THAT(text, HasSubstr("in generation 8\n  1 more in verdict.json\n"));
}

TEST(VerdictTextTest, Evidence_TheCulpritFirstAndEightRanksAtMost) {
  v1::Verdict verdict = Failed();
  v1::Failure& root = *verdict.mutable_root_cause();
  for (int rank = 0; rank < 10; ++rank) {
    v1::RankEvidence* evidence = root.add_evidence();
    evidence->set_rank(rank);
    evidence->set_node("n\x1b");
    evidence->set_summary("sleeps");
    evidence->set_file("/logs/evidence.txt");
  }
  const std::string text = VerdictText(verdict, Style());
  EXPECT_THAT(text, HasSubstr("rank 0 on n\\x1b, sleeps\n"));
  EXPECT_THAT(text, HasSubstr("evidence   /logs/evidence.txt\n"));
  EXPECT_THAT(text, HasSubstr("2 more in verdict.json\n"));
  EXPECT_THAT(text, Not(HasSubstr("rank 8 on")));
}

}  // namespace
}  // namespace cadre::launcher
