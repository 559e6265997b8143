// Everything on a node stands still for longer than its lease and goes on, as a machine that sleeps
// or a virtual one that is moved; and everything of a job with its server.
#include <signal.h>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "tests/faults/mortal_server.h"
#include "tests/faults/store_job.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr absl::Duration kOverTheLease = absl::Seconds(12);
constexpr absl::Duration kBelowTheLease = absl::Seconds(5);

class SuspendTest : public testing::Test {
 protected:
  void StartJob(int nodes, const std::string& nnodes) {
    ASSERT_TRUE(server_.Start());
    for (int node = 0; node < nodes; ++node) job_.StartNode(server_.port(), nnodes);
    job_.AwaitWorkers();
    job_.ExpectAdditions();
  }
  // The launcher first, which would make its supervisor go on.
  std::vector<pid_t> ProcessesOf(size_t node) {
    std::vector<pid_t> all = {job_.node(node).pid(), ParentOf(job_.workers(node)[0].pid)};
    for (const ProbeLine& worker : job_.workers(node)) all.push_back(worker.pid);
    return all;
  }
  static void Send(const std::vector<pid_t>& processes, int signal) {
    for (const pid_t process : processes) EXPECT_EQ(kill(process, signal), 0) << process;
  }

  MortalServer server_;
  StoreJob job_{server_.token_file()};
};

// Fault (node): All processes on a node stand still for longer than its lease -> The others run the
// next generation; later the node's old workers are stopped, none of their additions counts, and it
// is a spare
TEST_F(SuspendTest, ANodeOverItsLease_TheOthersGoOnAndItComesBackWithoutItsOldWorkers) {
  StartJob(3, "2:3");
  const std::vector<pid_t> processes = ProcessesOf(2);
  Send(processes, SIGSTOP);
  for (const size_t node : {0, 1}) EXPECT_EQ(job_.Workers(node, 2)[0].world, 4);
  const int acknowledged = job_.Acknowledged(2, 1);
  Send(processes, SIGCONT);
  for (const ProbeLine& worker : job_.workers(2)) {
    EXPECT_TRUE(WaitGone(worker.pid, kTimeout)) << OutputOf(job_.node(2));
  }
  // Each worker may have had one answer before it stood still that it had not told of.
  EXPECT_LE(job_.Acknowledged(2, 1), acknowledged + 2);
  job_.KillNode(1);
  for (const size_t node : {0, 2}) EXPECT_EQ(job_.Workers(node, 3)[0].world, 4);
  job_.Finish();
}

// Half a lease, of a launcher alone and of all on its node.
//
// Fault (node): A launcher, or all processes on a node, stand still for half a lease -> Nothing
// happens
TEST_F(SuspendTest, ANodeBelowItsLease_NothingHappens) {
  StartJob(2, "2");
  for (const bool all : {false, true}) {
    std::vector<pid_t> processes = ProcessesOf(1);
    if (!all) processes.resize(1);
    Send(processes, SIGSTOP);
    EXPECT_EQ(job_.node(1).Wait(kBelowTheLease), std::nullopt);
    Send(processes, SIGCONT);
    job_.ExpectAdditions();
    job_.ExpectUndisturbed();
  }
  job_.Finish();
  EXPECT_THAT(job_.node(0).standard_error(), Not(HasSubstr("is out")));
}

// Its nodes hear nothing, give their connections up and try again.
TEST_F(SuspendTest, TheServerAloneForTwoLeases_NobodyIsTakenForLost) {
  StartJob(2, "2");
  server_.process().Kill(SIGSTOP);
  for (const size_t node : {0, 1}) job_.Await(node, "lost the rendezvous server");
  EXPECT_EQ(server_.process().Wait(kBelowTheLease), std::nullopt);
  job_.ExpectUndisturbed();
  server_.process().Kill(SIGCONT);
  job_.ExpectAdditions();
  job_.ExpectUndisturbed();
  job_.Finish();
  job_.ExpectOneGeneration();
}

// Whoever wakes up first.
//
// Fault (server): All processes of a job and its server stand still for longer than a lease,
// whichever goes on first -> No node is lost, and generation and workers stay
TEST_F(SuspendTest, AllOfAJobAndItsServer_NobodyIsTakenForLost) {
  StartJob(2, "2");
  for (const bool server_first : {true, false}) {
    std::vector<pid_t> processes;
    for (const size_t node : {0, 1}) {
      for (const pid_t process : ProcessesOf(node)) processes.push_back(process);
    }
    processes.insert(server_first ? processes.begin() : processes.end(), server_.process().pid());
    Send(processes, SIGSTOP);
    // It ends no more than the others do.
    EXPECT_EQ(server_.process().Wait(kOverTheLease), std::nullopt);
    Send(processes, SIGCONT);
    job_.ExpectAdditions();
    job_.ExpectUndisturbed();
  }
  job_.Finish();
  job_.ExpectOneGeneration();
}

}  // namespace
}  // namespace cadre
