#include "launcher/commands/logs.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/commands/commands.h"
#include "rendezvous/host/agent_requests.h"

namespace cadre::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A job of two ranks and its files. Each poll of the job may change them.
class LogFollowTest : public testing::Test {
 protected:
  LogFollowTest() {
    job_.set_name("j");
    job_.set_run("1Z");
    job_.set_phase(v1::RUNNING);
    BeginGeneration();
  }
  void BeginGeneration() {
    const uint64_t number = job_.generation() + 1;
    job_.set_generation(number);
    job_.set_world_size(2);
    job_.set_workers_running(2);
    v1::GenerationTimeline* one = job_.mutable_timeline()->add_generations();
    one->set_generation(number);
    one->set_world_size(2);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      files_[{number, rank}] = absl::StrCat("g", number, "r", rank);
      texts_[files_[{number, rank}]];
    }
  }
  void End(int status) {
    job_.set_phase(v1::FAILED);
    job_.mutable_verdict()->set_exit_status(status);
    job_.mutable_verdict()->set_message("it ended");
    ended_ = true;
  }

  int Follow(const LogFollow& what) {
    const LogServer server = {[this](const std::string&) -> absl::StatusOr<v1::JobStatus> {
                                if (!steps_.empty()) {
                                  steps_.front()();
                                  steps_.erase(steps_.begin());
                                }
                                return job_;
                              },
                              [this](const v1::ReadLogRequest& request) { return Read(request); },
                              [this](const v1::ReadLogRequest& request) {
                                const auto rank = std::pair(request.generation(), request.rank());
                                return request.standard_error() ? std::vector<LogTime>()
                                                                : times_[files_[rank]];
                              }};
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int status = FollowLogs(server, what);
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    return status;
  }
  // In pieces of three bytes. Standard error is always empty.
  absl::StatusOr<v1::ReadLogReply> Read(const v1::ReadLogRequest& request) {
    EXPECT_EQ(request.run(), "1Z");
    const std::string& file = files_[{request.generation(), request.rank()}];
    v1::ReadLogReply reply;
    reply.set_ended(ended_);
    reply.set_file(file + (request.standard_error() ? "/err" : ""));
    if (request.standard_error()) return reply;
    const auto refused = refused_.find(file);
    if (refused != refused_.end()) return refused->second;
    const std::string& text = texts_[file];
    reply.set_offset(request.tail() == 0 ? request.offset()
                                         : text.size() - std::min(text.size(), request.tail()));
    reply.set_bytes(text.substr(reply.offset(), piece_));
    return reply;
  }

  v1::JobStatus job_;
  std::map<std::pair<uint64_t, uint32_t>, std::string> files_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, std::vector<LogTime>> times_;
  std::map<std::string, absl::Status> refused_;
  std::vector<std::function<void()>> steps_;
  bool ended_ = false;
  size_t piece_ = 3;
  std::string out_, err_;
};

LogFollow All(bool follow) {
  LogFollow what;
  what.job = "j";
  what.follow = follow;
  return what;
}

TEST_F(LogFollowTest, OfWhatIsThereTheLastLines) {
  piece_ = host::kLogChunkBytes;
  texts_["g1r0"] = std::string(3 * host::kLogChunkBytes, 'x') + "\na\nb\n";
  texts_["g1r1"] = "zero\none\nhalf";
  LogFollow what = All(true);
  what.tail = 2;
  steps_ = {[] {}, [this] { texts_["g1r0"] += "c\n"; }, [this] { End(7); }};
  EXPECT_EQ(Follow(what), 7);
  EXPECT_EQ(out_, "[0]: a\n[0]: b\n[1]: one\n[0]: c\n[1]: half\n");
  what.follow = false;
  what.tail = 0;
  Follow(what);
  EXPECT_EQ(out_, "");
  what.tail = 100;
  what.rank = 1;
  Follow(what);
  EXPECT_EQ(out_, "zero\none\nhalf\n");
}

TEST_F(LogFollowTest, WhatRanksWroteIsShownInTheOrderOfTime) {
  // A line may begin in one second and end in another.
  texts_["g1r0"] = "a1\na2 begun, and ended\na7\n";
  times_["g1r0"] = {{1000, 0}, {2000, 6}, {7000, 23}};
  texts_["g1r1"] = "b3\nb4\nb8 half";
  times_["g1r1"] = {{3000, 0}, {8000, 6}};
  steps_ = {[] {},
            [this] {
              texts_["g1r1"] += " is whole\n";
              texts_["g1r0"] += "a9\n";
            },
            [this] { End(7); }};
  EXPECT_EQ(Follow(All(true)), 7);
  EXPECT_EQ(out_,
            "[0]: a1\n[0]: a2 begun, and ended\n[1]: b3\n[1]: b4\n[0]: a7\n[0]: a9\n"
            "[1]: b8 half is whole\n");
}

// The number of the last generation of an earlier job of that name.
TEST_F(LogFollowTest, AJobThatEndsBeforeItsFirstGeneration) {
  job_.mutable_timeline()->clear_generations();
  job_.set_generation(7);
  steps_ = {[] {}, [this] { End(124); }};
  EXPECT_EQ(Follow(All(true)), 124);
  EXPECT_THAT(err_, HasSubstr("job j failed: it ended"));
}

TEST_F(LogFollowTest, ExactBytesAndOtherPrefixes) {
  texts_["g1r0"] = "zero\nhal";
  texts_["g1r1"] = "one\n";
  LogFollow what = All(true);
  what.exact = true;
  steps_ = {[] {}, [] {}, [this] { End(7); }};
  EXPECT_EQ(Follow(what), 7);
  EXPECT_EQ(out_, "zero\none\nhal");
  what.exact = false;
  what.prefix = [](uint32_t rank) { return absl::StrCat(rank, ": "); };
  EXPECT_EQ(Follow(what), 7);
  EXPECT_EQ(out_, "0: zero\n1: one\n0: hal\n");
}

TEST_F(LogFollowTest, UnbufferedOutputIsShownBeforeItsLineIsComplete) {
  texts_["g1r0"] = "hal";
  texts_["g1r1"] = "one\n";
  LogFollow what = All(true);
  what.exact = what.unbuffered = true;
  steps_ = {[] {}, [this] { texts_["g1r0"] += "f\n"; }, [this] { End(0); }};
  EXPECT_EQ(Follow(what), 0);
  EXPECT_EQ(out_, "halone\nf\n");
}

TEST_F(LogFollowTest, OneStreamOfFewRanksAndAnotherEnd) {
  texts_["g1r0"] = "zero\n";
  texts_["g1r1"] = "one\n";
  LogFollow what = All(true);
  what.most_ranks = 1;
  what.shows_errors = false;
  what.on_end = [](const v1::JobStatus& job) { return job.verdict().exit_status() + 1; };
  int waits = 0;
  what.wait = [&waits](absl::Duration) { ++waits; };
  steps_ = {[] {}, [this] { End(7); }};
  EXPECT_EQ(Follow(what), 8);
  EXPECT_EQ(out_, "[0]: zero\n");
  EXPECT_EQ(err_, "cadre: showing ranks 0 to 0 of 2; --rank N shows another one\n");
  EXPECT_EQ(waits, 1);
  // Nothing is read.
  what.most_ranks = 0;
  EXPECT_EQ(Follow(what), 8);
  EXPECT_EQ(out_ + err_, "");
}

TEST_F(LogFollowTest, OnlyWhatWasWrittenSinceThen) {
  piece_ = host::kLogChunkBytes;
  texts_["g1r0"] = "a1\na2 begun, and ended\na7\n";
  times_["g1r0"] = {{1000, 0}, {2000, 6}, {7000, 23}};
  texts_["g1r1"] = "b1\n";
  times_["g1r1"] = {{1000, 0}};
  LogFollow what = All(false);
  what.since = absl::FromUnixMillis(2500);
  EXPECT_EQ(Follow(what), 0);
  EXPECT_EQ(out_, "[0]: a2 begun, and ended\n[0]: a7\n");
  what.since = absl::FromUnixMillis(4000);
  EXPECT_EQ(Follow(what), 0);
  EXPECT_EQ(out_, "[0]: a7\n");
  what.tail = 1;
  what.since = absl::FromUnixMillis(0);
  EXPECT_EQ(Follow(what), 0);
  EXPECT_EQ(out_, "[1]: b1\n[0]: a7\n");
  // Files of an earlier version have no times.
  times_.clear();
  what.tail.reset();
  what.since = absl::FromUnixMillis(4000);
  EXPECT_EQ(Follow(what), 0);
  EXPECT_THAT(out_, HasSubstr("[0]: a1\n"));
  EXPECT_THAT(err_, HasSubstr("it is not known when rank 1 wrote its standard output: all of it"));
}

TEST_F(LogFollowTest, OfAProcessThatGoesOnInItsPlaceEachByteIsShownOnce) {
  texts_["g1r0"] = "zero\n";
  texts_["g1r1"] = "one\n";
  steps_ = {[] {},
            [this] {
              BeginGeneration();
              // Rank 0 is now the former rank 1, and rank 1 is a new process.
              files_[{2, 0}] = "g1r1";
              texts_["g1r1"] += "one goes on\n";
              texts_["g2r1"] = "new\n";
            },
            [this] { End(7); }};
  EXPECT_EQ(Follow(All(true)), 7);
  EXPECT_EQ(out_, "[0]: zero\n[1]: one\n[1]: one goes on\n[1]: new\n");
  EXPECT_THAT(err_, HasSubstr("job j failed: it ended"));
}

TEST_F(LogFollowTest, AnEarlierGenerationIsShownByNumberOrAsThePreviousOne) {
  texts_["g1r0"] = "first\n";
  BeginGeneration();
  texts_["g2r0"] = "second\n";
  BeginGeneration();
  texts_["g3r0"] = "third\n";
  LogFollow what = All(false);
  EXPECT_EQ(Follow(what), 0);
  EXPECT_EQ(out_, "[0]: third\n");
  what.generation = 1;
  EXPECT_EQ(Follow(what), 0);
  EXPECT_EQ(out_, "[0]: first\n");
  what.generation.reset();
  what.previous = true;
  what.rank = 0;
  EXPECT_EQ(Follow(what), 0);
  EXPECT_EQ(out_, "second\n");
  // While the next generation is gathered the last one is shown.
  job_.set_phase(v1::GATHERING);
  job_.set_world_size(0);
  what.previous = false;
  EXPECT_EQ(Follow(what), 0);
  EXPECT_EQ(out_, "third\n");
  what.generation = 4;
  EXPECT_EQ(Follow(what), 1);
  EXPECT_THAT(err_, HasSubstr("job j has no generation 4; it has 1 to 3 so far"));
}

TEST_F(LogFollowTest, AGenerationThatIsFollowedEndsWithIt) {
  texts_["g1r0"] = "first\n";
  LogFollow what = All(true);
  what.generation = 1;
  steps_ = {[] {},
            [this] {
              texts_["g1r0"] += "last words\n";
              BeginGeneration();
              texts_["g2r0"] = "second\n";
            }};
  EXPECT_EQ(Follow(what), 0);
  EXPECT_EQ(out_, "[0]: first\n[0]: last words\n");
}

TEST_F(LogFollowTest, WhatIsRefusedIsSaid_AndTheOthersAreShown) {
  texts_["g1r0"] = "zero\n";
  refused_["g1r1"] = absl::PermissionDeniedError("cannot read /l/stdout.log: Permission denied");
  EXPECT_EQ(Follow(All(false)), kExitUnavailable);
  EXPECT_EQ(out_, "[0]: zero\n");
  EXPECT_THAT(err_, HasSubstr("cannot show the standard output of rank 1 in generation 1: cannot "
                              "read /l/stdout.log: Permission denied"));
  // It is printed once, and following continues until the job ends.
  steps_ = {[] {}, [] {}, [this] { End(0); }};
  EXPECT_EQ(Follow(All(true)), 0);
  EXPECT_EQ(err_.find("Permission"), err_.rfind("Permission"));
}

TEST_F(LogFollowTest, AFileThatIsNotThereIsSaidOnceItShouldBe) {
  refused_["g1r1"] = absl::NotFoundError("no such file");
  job_.set_workers_running(1);
  EXPECT_EQ(Follow(All(false)), 0);
  EXPECT_THAT(err_, Not(HasSubstr("no such file")));
  job_.set_workers_running(2);
  EXPECT_EQ(Follow(All(false)), 1);
  EXPECT_THAT(err_, AllOf(HasSubstr("rank 1"), HasSubstr("no such file")));
}

TEST_F(LogFollowTest, WhatIsWrittenAfterTheVerdictIsShownToo) {
  texts_["g1r0"] = "zero\n";
  steps_ = {[] {},
            [this] {
              End(3);
              ended_ = false;
            },
            [this] {
              texts_["g1r0"] += "after the verdict";
              ended_ = true;
            }};
  EXPECT_EQ(Follow(All(true)), 3);
  EXPECT_EQ(out_, "[0]: zero\n[0]: after the verdict\n");
}

TEST_F(LogFollowTest, AnotherRunOfTheNameIsNotShown) {
  texts_["g1r0"] = "zero\n";
  steps_ = {[] {}, [this] { job_.set_run("2Z"); }};
  EXPECT_EQ(Follow(All(true)), 1);
  EXPECT_EQ(out_, "[0]: zero\n");
  EXPECT_THAT(err_, HasSubstr("was submitted again"));
}

TEST_F(LogFollowTest, AJobThatBeganNowhere_IsSaidToHaveNoOutput) {
  job_.clear_timeline();
  job_.set_generation(0);
  LogFollow what = All(false);
  what.rank = 9;
  EXPECT_EQ(Follow(what), 0);
  EXPECT_THAT(err_, HasSubstr("job j has begun no generation"));
}

TEST_F(LogFollowTest, ANodeThatIsAvoidedIsNotSaid_WhereTheJobRunsOnItOrIsOver) {
  job_.add_avoided()->set_node("n1");
  job_.add_nodes()->set_name("n1");
  steps_ = {[] {},
            [this] {
              job_.clear_nodes();
              End(75);
            }};
  EXPECT_EQ(Follow(All(true)), 75);
  EXPECT_THAT(err_, Not(HasSubstr("avoids")));
}

TEST_F(LogFollowTest, ANodeThatIsAvoidedIsSaidOnceToWhoFollows) {
  v1::AvoidedNode* avoided = job_.add_avoided();
  avoided->set_node("n1");
  avoided->set_reason("working_dir: No such file");
  job_.set_waiting_for("a node");
  steps_ = {[] {}, [] {}, [this] { End(75); }};
  EXPECT_EQ(Follow(All(true)), 75);
  const std::string said = "job j avoids n1: working_dir: No such file; it waits for a node\n";
  EXPECT_THAT(err_, HasSubstr(said));
  EXPECT_EQ(err_.find(said), err_.rfind(said));
}

TEST_F(LogFollowTest, WhatGoesToATerminalIsMadeSafe) {
  texts_["g1r0"] = "\x1b]0;mine\x07 \x1b[31mred\n";
  End(0);
  LogFollow what = All(false);
  Follow(what);
  EXPECT_THAT(out_, HasSubstr("[0]: \x1b]0;mine\x07 \x1b[31mred\n"));
  what.safe_output = true;
  Follow(what);
  EXPECT_THAT(out_, HasSubstr("[0]: \\x1b]0;mine\\x07 \x1b[31mred\x1b[0m\n"));
}

std::vector<LogTime> TimesOf(const std::string& text) {
  const std::string folder = ::testing::TempDir();
  std::ofstream(folder + "/stdout.times") << text;
  return ReadLogTimes(folder + "/stdout.log");
}

TEST(LogTimesTest, WhatIsWantedBeginsWithTheSecondInWhichItWas) {
  const std::vector<LogTime> times = TimesOf("10000 0\n11000 50\n60000 70\n");
  const auto since = [&](int64_t ms) { return OffsetSince(times, absl::FromUnixMillis(ms), 100); };
  EXPECT_EQ(since(0), 0u);
  EXPECT_EQ(since(11500), 50u);
  // The content of the second from 11.0 on is too old, and nothing more was written for a while.
  EXPECT_EQ(since(12500), 70u);
  EXPECT_EQ(since(61500), 100u);
}

TEST(LogTimesTest, AClockThatWasSetBackAndALineThatWasCutOffDoNoHarm) {
  const std::vector<LogTime> times = TimesOf("10000 0\n5000 50\n12000 70\n130");
  ASSERT_EQ(times.size(), 3u);
  EXPECT_EQ(times[1].unix_ms, 10000);
  EXPECT_EQ(times[2].unix_ms, 12000);
  EXPECT_TRUE(ReadLogTimes("/nonexistent/stdout.log").empty());
}

TEST(ParseSinceTest, AgoATimeOfDayAndADate) {
  const absl::TimeZone zone = absl::FixedTimeZone(3600);
  const absl::Time now = absl::FromCivil(absl::CivilSecond(2026, 11, 29, 12, 0, 0), zone);
  const auto said = [&](absl::string_view text) -> std::string {
    const auto time = ParseSince(text, now, zone);
    if (!time.ok()) return std::string(time.status().message());
    return absl::FormatTime("%Y-%m-%d %H:%M:%E*S", *time, zone);
  };
  EXPECT_EQ(said("5m"), "2026-11-29 11:55:00");
  EXPECT_EQ(said("11:30"), "2026-11-29 11:30:00");
  EXPECT_EQ(said("12:30"), "2026-11-28 12:30:00") << "yesterday's";
  EXPECT_EQ(said("11:30:15.5"), "2026-11-29 11:30:15.5");
  EXPECT_EQ(said("2026-11-27"), "2026-11-27 00:00:00");
  EXPECT_EQ(said("2026-11-27 10:00"), "2026-11-27 10:00:00");
  EXPECT_EQ(said("2026-11-27T10:00:01"), "2026-11-27 10:00:01");
  EXPECT_EQ(said("2026-11-27T10:00:01Z"), "2026-11-27 11:00:01");
  EXPECT_EQ(said("2026-11-27T10:00:01+02:00"), "2026-11-27 09:00:01");
  for (const char* bad : {"", "yesterday", "25:00", "5 minutes"}) {
    EXPECT_THAT(said(bad), HasSubstr("expected how long ago, as 5m")) << bad;
  }
}

}  // namespace
}  // namespace cadre::launcher
