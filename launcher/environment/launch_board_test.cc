#include "launcher/environment/launch_board.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Minutes(1);
constexpr absl::Duration kShort = absl::Milliseconds(50);

class LaunchBoardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string home = absl::StrCat(::testing::TempDir(), "/homeXXXXXX");
    ASSERT_NE(mkdtemp(home.data()), nullptr);
    if (const char* const before = getenv("HOME")) before_ = before;
    setenv("HOME", home.c_str(), 1);
    home_ = home;
    verdict_.set_job("j");
    verdict_.set_outcome(v1::FAILED);
    verdict_.set_exit_status(7);
  }
  void TearDown() override {
    if (before_.has_value()) {
      setenv("HOME", before_->c_str(), 1);
    } else {
      unsetenv("HOME");
    }
  }
  static LaunchBoard Board() { return *LaunchBoard::Open("mpi-7"); }
  void MakeOld(const std::string& file) {
    const timespec then = absl::ToTimespec(absl::Now() - kLaunchEndKept - absl::Minutes(1));
    const timespec times[] = {then, then};
    ASSERT_EQ(utimensat(AT_FDCWD, (home_ + "/.cadre/mpi-7" + file).c_str(), times, 0), 0);
  }

  std::string home_;
  std::optional<std::string> before_;
  v1::Verdict verdict_;
};

TEST_F(LaunchBoardTest, NodesCountTogether_InTheOrderOfTheirTasks) {
  const LaunchBoard board = Board();
  absl::StatusOr<std::vector<LaunchBoard::Node>> first, second;
  std::thread other([&] { second = board.GatherNodes({2, 3, "n2"}, 5, kLong); });
  first = board.GatherNodes({0, 2, "n1"}, 5, kLong);
  other.join();
  for (const auto& nodes : {first, second}) {
    ASSERT_OK(nodes);
    ASSERT_EQ(nodes->size(), 2u);
    EXPECT_EQ((*nodes)[0].name, "n1");
    EXPECT_EQ((*nodes)[1].name, "n2");
    EXPECT_EQ((*nodes)[1].task, 2u);
    EXPECT_EQ((*nodes)[1].tasks, 3u);
  }
}

TEST_F(LaunchBoardTest, WhoDoesNotCome_IsMissed) {
  EXPECT_THAT(Board().GatherNodes({0, 2, "n1"}, 5, kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("5 tasks"), HasSubstr("n1 (2)"), HasSubstr("--nnodes"))));
  // Five, together with what the first node has published.
  EXPECT_OK(Board().GatherNodes({2, 3, "n2"}, 5, kLong));
  EXPECT_THAT(Board().GatherNodes({5, 1, "n3"}, 5, kLong),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nodes report 6")));
}

TEST_F(LaunchBoardTest, TheOthersHearWhereItServes) {
  const LaunchBoard board = Board();
  absl::StatusOr<std::string> at;
  std::thread other([&] { at = board.AwaitServer(kLong, "n2", [] {}); });
  ASSERT_OK(board.PublishAddress("10.0.0.1:2345"));
  other.join();
  ASSERT_OK(at);
  EXPECT_EQ(*at, "10.0.0.1:2345");
  board.Remove();
  EXPECT_TRUE(std::filesystem::is_empty(home_ + "/.cadre"));
  EXPECT_THAT(board.AwaitServer(kShort, "n2", [] {}),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("home directory")));
}

TEST_F(LaunchBoardTest, TheOthersHearWhyItCannotServe) {
  const LaunchBoard board = Board();
  board.PublishFailure("no such script");
  EXPECT_THAT(
      board.AwaitServer(kLong, "n2", [] {}),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cannot serve it: no such script")));
  // Another launch of a similar name.
  EXPECT_THAT(LaunchBoard::Open("mpi-7.r1")->AwaitServer(kShort, "n2", [] {}),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("mpi-7.r1")));
}

// The first run fails because the first node lacks the script, and the second run in the same
// launch finds it.
TEST_F(LaunchBoardTest, WhyItCannotServe_IsOfOneRun) {
  const LaunchBoard board = Board();
  EXPECT_OK(board.Failure("n2"));
  board.PublishFailure("no such script");
  EXPECT_THAT(board.Failure("n2"), StatusIs(absl::StatusCode::kUnavailable,
                                            HasSubstr("cannot serve it: no such script")));
  board.NoteTakenPart("n2");
  EXPECT_OK(board.Failure("n2"));
  EXPECT_THAT(board.AwaitServer(kShort, "n2", [] {}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(board.AwaitServer(kLong, "n3", [] {}), StatusIs(absl::StatusCode::kUnavailable))
      << "a node that has not heard it";
  MakeOld(".server");
  EXPECT_OK(board.Failure("n4"));
  board.PublishFailure("again");
  EXPECT_THAT(board.Failure("n4"), StatusIs(absl::StatusCode::kUnavailable));
  board.ForgetEarlierRun();
  EXPECT_OK(board.Failure("n4"));
}

TEST_F(LaunchBoardTest, WhoServesOnceMore_TakesNothingBackOfWhere) {
  const LaunchBoard board = Board();
  ASSERT_OK(board.PublishAddress("10.0.0.1:2345"));
  board.ForgetEarlierRun();
  EXPECT_OK(board.AwaitServer(kLong, "n2", [] {}));
  EXPECT_OK(board.Failure("n2"));
}

TEST_F(LaunchBoardTest, WhoComesAfterTheEnd_DoesNotWait) {
  const LaunchBoard board = Board();
  ASSERT_OK(board.RecordEnd(verdict_));
  EXPECT_THAT(board.AwaitServer(kLong, "n2", [] {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("mpi-7 has ended")));
  ASSERT_OK(board.ReadEnd());
  EXPECT_EQ(board.ReadEnd()->exit_status(), 7);
  EXPECT_THAT(LaunchBoard::Open("mpi-7.r1")->ReadEnd(), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(LaunchBoardTest, WhoServesBeginsWithoutAnEnd) {
  ASSERT_OK(Board().RecordEnd(verdict_));
  Board().ForgetEarlierRun();
  EXPECT_THAT(Board().ReadEnd(), StatusIs(absl::StatusCode::kNotFound));
}

// A script may call `cadre run` twice in one step of a Slurm job.
TEST_F(LaunchBoardTest, WhoTookPartIsNotTooLateForTheNextRun) {
  const LaunchBoard board = Board();
  ASSERT_OK(board.RecordEnd(verdict_));
  board.NoteTakenPart("n1");
  EXPECT_TRUE(board.HasTakenPart("n1"));
  EXPECT_FALSE(board.HasTakenPart("n2"));
  EXPECT_FALSE(LaunchBoard::Open("mpi-7.r1")->HasTakenPart("n1"));
  EXPECT_THAT(board.AwaitServer(kShort, "n1", [] {}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(board.AwaitServer(kShort, "n2", [] {}), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(LaunchBoardTest, OldEndsAreNotBelievedAndRemoved) {
  const LaunchBoard board = Board();
  ASSERT_OK(board.RecordEnd(verdict_));
  board.NoteTakenPart("n1");
  std::ofstream(board.TokenFile()) << "token";
  for (const char* const file : {".ended", ".n1.ran", ".token"}) MakeOld(file);
  EXPECT_THAT(board.ReadEnd(), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_OK(LaunchBoard::Open("mpi-8")->RecordEnd(verdict_));
  EXPECT_FALSE(std::filesystem::exists(home_ + "/.cadre/mpi-7.ended"));
  EXPECT_FALSE(std::filesystem::exists(home_ + "/.cadre/mpi-7.n1.ran"));
  EXPECT_TRUE(std::filesystem::exists(board.TokenFile())) << "its launch may be running";
}

TEST_F(LaunchBoardTest, WhatIsBrokenIsNoEnd) {
  std::ofstream(home_ + "/.cadre/mpi-7.ended") << "\xff\xff";
  EXPECT_THAT(Board().ReadEnd(), StatusIs(absl::StatusCode::kNotFound));
}

// Launches are named after process ids, which are reused.
TEST_F(LaunchBoardTest, WhatAnEarlierLaunchLeft_IsNotBelieved) {
  const LaunchBoard board = Board();
  ASSERT_OK(board.PublishAddress("10.0.0.1:2345"));
  const timespec old[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, (home_ + "/.cadre/mpi-7.server").c_str(), old, 0), 0);
  EXPECT_THAT(board.AwaitServer(kShort, "n2", [] {}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  // The next launch removes the file.
  ASSERT_OK(LaunchBoard::Open("mpi-8")->PublishAddress("10.0.0.1:2345"));
  EXPECT_FALSE(std::filesystem::exists(home_ + "/.cadre/mpi-7.server"));
}

// mpirun's side, which answers each request with the next of `answers`.
class Pmi {
 public:
  explicit Pmi(std::vector<std::string> answers) {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0);
    thread_ = std::thread([this, answers] {
      for (const std::string& answer : answers) {
        char question[256];
        const ssize_t got = read(ends_[1], question, sizeof(question));
        if (got <= 0) return;
        asked_.append(question, static_cast<size_t>(got));
        // In two parts, as a stream may deliver it.
        EXPECT_EQ(write(ends_[1], answer.data(), 3), 3);
        EXPECT_EQ(write(ends_[1], answer.data() + 3, answer.size() - 3),
                  static_cast<ssize_t>(answer.size()) - 3);
      }
    });
  }
  ~Pmi() {
    close(ends_[0]);
    if (thread_.joinable()) thread_.join();
    close(ends_[1]);
  }
  int fd() const { return ends_[0]; }
  std::string Asked() {
    thread_.join();
    return asked_;
  }

 private:
  int ends_[2];
  std::thread thread_;
  std::string asked_;
};

TEST(PmiTest, TheJobHasAName) {
  Pmi pmi({"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
           "cmd=my_kvsname kvsname=kvs_1_0_2_n1\n", "cmd=finalize_ack\n"});
  const auto job = AskPmiForJob(pmi.fd());
  ASSERT_OK(job);
  EXPECT_EQ(*job, "kvs_1_0_2_n1");
  EXPECT_EQ(pmi.Asked(),
            "cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_my_kvsname\ncmd=finalize\n");
}

TEST(PmiTest, WhoAnswersOtherwiseHasNone) {
  Pmi nameless({"cmd=response_to_init rc=0\n", "cmd=unknown\n", "cmd=finalize_ack\n"});
  EXPECT_THAT(AskPmiForJob(nameless.fd()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the name of its job")));
  Pmi silent({});
  EXPECT_THAT(AskPmiForJob(silent.fd(), kShort), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(AskPmiForJob(-1, kShort), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace cadre::launcher
