// A node whose launcher is killed, or stands still.
#include <signal.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "tests/faults/mortal_server.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLease = absl::Seconds(10);
// It takes 0.3 s (docs/faults.md, Measured); a machine that is busy with other tests adds to that,
// and still nobody waits for the lease of a node whose connection has ended: a third of it.
constexpr absl::Duration kNextGenerationWithin = absl::Milliseconds(3300);
constexpr absl::Duration kTimeout = absl::Seconds(60);
// This is less than --orphan-timeout, the time for which a node waits for a server that may come
// back.
constexpr absl::Duration kSoon = absl::Seconds(20);

class NodeLostTest : public testing::Test {
 protected:
  // Three nodes of two workers each, any two of which are enough.
  void StartJob(const std::vector<std::string>& more) {
    ASSERT_TRUE(server_.Start());
    std::vector<std::string> arguments = more;
    arguments.insert(arguments.end(), {"--settle", "60s", kProbe});
    for (int node = 0; node < 3; ++node) {
      nodes_.push_back(server_.StartNode(node, "2:3", arguments));
      ASSERT_NE(nodes_.back(), nullptr);
    }
    for (const auto& node : nodes_) probes_.push_back(Workers(*node, 1));
  }
  static std::vector<ProbeLine> Workers(Process& node, int generation) {
    const std::vector<ProbeLine> probes = NextProbes(node, 2, kTimeout);
    EXPECT_EQ(probes.size(), 2u) << OutputOf(node);
    for (const ProbeLine& probe : probes) EXPECT_EQ(probe.generation, generation);
    return probes;
  }
  // When the first and the last worker of generation 2 began, on the two nodes that are left.
  void AwaitOthers() {
    for (const size_t node : {0, 1}) {
      for (const ProbeLine& worker : Workers(*nodes_[node], 2)) {
        const MonoTime at = MonoTime::FromMicros(worker.at_ns / 1000);
        first_ = std::min(first_, at);
        last_ = std::max(last_, at);
      }
    }
  }

  MortalServer server_;
  std::vector<std::unique_ptr<Process>> nodes_;
  std::vector<std::vector<ProbeLine>> probes_;
  MonoTime first_ = MonoTime::Never();
  MonoTime last_;
};

// Fault (node): A node's launcher is killed in an elastic job -> The others run the next generation
// within a third of the lease, without waiting for the settle window of 60 s
TEST_F(NodeLostTest, Killed_TheOthersRunTheNextGeneration) {
  StartJob({});
  const MonoTime killed = MonoNow();
  nodes_[2]->Kill(SIGKILL);
  AwaitOthers();
  printf("killed a node: all workers of the next generation run after %s\n",
         absl::FormatDuration(last_ - killed).c_str());
  EXPECT_LT(last_ - killed, kNextGenerationWithin);
  EXPECT_THAT(OutputOf(*nodes_[0]),
              testing::HasSubstr(": its launcher is gone (killed, crashed, or "));
}

// Nobody but the supervisor can act in time.
//
// Fault (node): A launcher stands still, with `--strict-fencing` -> The supervisor kills the
// workers by itself before the others go on
TEST_F(NodeLostTest, StrictFencing_ALauncherThatStandsStillHasNoWorkersWhenTheOthersGoOn) {
  StartJob({"--strict-fencing"});
  const MonoTime stopped = MonoNow();
  nodes_[2]->Kill(SIGSTOP);
  for (const ProbeLine& worker : probes_[2]) EXPECT_TRUE(WaitGone(worker.pid, kTimeout));
  const MonoTime gone = MonoNow();
  AwaitOthers();
  printf("stopped a launcher: its workers are gone after %s, the others go on after %s\n",
         absl::FormatDuration(gone - stopped).c_str(),
         absl::FormatDuration(first_ - stopped).c_str());
  EXPECT_LT(gone, first_);
  EXPECT_LT(gone - stopped, kLease);
  // It comes back as a spare, with nothing to stop.
  nodes_[2]->Kill(SIGCONT);
  EXPECT_TRUE(nodes_[2]->WaitForLine("are killed (--strict-fencing)").has_value())
      << OutputOf(*nodes_[2]);
  EXPECT_TRUE(nodes_[2]->WaitForLine("reached the rendezvous", kTimeout).has_value())
      << OutputOf(*nodes_[2]);
}

// The killed launcher served the job and kept no state on disk, so how the job ended can never be
// learned.
//
// Fault (server): The launcher that runs the server, without a state directory, is killed -> Each
// other launcher ends once one of its workers has failed or all have ended, with 69 and what it
// knows of its own workers
TEST(ServingLauncherKilledTest, AnotherOneEndsWithItsWorkersAndSaysWhatItKnows) {
  for (const int status : {3, 0}) {
    const int port = FreePort();
    const std::string end = MakeTempDir("end") + "/now";
    const auto start = [&](int node) {
      return StartNode(port, "2", node,
                       {"--nproc-per-node", "1", "--", "/bin/sh", "-c",
                        absl::StrCat("echo it works; until [ -e ", end,
                                     " ]; do sleep 0.02; done; exit ", status)});
    };
    const auto serves = start(0);
    ASSERT_TRUE(serves->WaitForLine("serving the rendezvous", kTimeout)) << OutputOf(*serves);
    const auto other = start(1);
    ASSERT_TRUE(other->WaitForLine("it works", kTimeout)) << OutputOf(*other);
    serves->Kill(SIGKILL);
    ASSERT_TRUE(other->WaitForLine("lost the rendezvous server", kTimeout)) << OutputOf(*other);
    std::ofstream(end) << "now";
    EXPECT_EQ(other->Wait(kSoon), 69) << OutputOf(*other);
    const std::string said = other->standard_error();
    EXPECT_EQ(said.find("lost the rendezvous"), said.rfind("lost the rendezvous")) << said;
    EXPECT_THAT(said, AllOf(HasSubstr("has ended, and nothing tells how the job ended: "),
                            HasSubstr(status == 0 ? "the workers of this node had all succeeded"
                                                  : "exited with status 3")));
  }
}

}  // namespace
}  // namespace cadre
