// The wire between a real server and real nodes, through a proxy of the test's own: one direction
// of a node's link stands still alone, everything is late, or answers are lost with their
// connection, so that what was asked is asked again. (TCP cannot lose or double a message within a
// connection; what a node repeats on its next one is what doubles are here.)
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "tests/faults/mortal_server.h"
#include "tests/faults/store_job.h"
#include "tests/testing/tcp_proxy.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kTimeout = absl::Seconds(60);

class LossyWireTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(server_.Start());
    proxy_ = std::make_unique<TcpProxy>(server_.port());
  }
  // The last of `nodes` is behind the proxy, and what it asks for besides.
  void StartJob(int nodes, const std::string& nnodes, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--orphan-timeout", "120s"});
    for (int node = 0; node < nodes; ++node) {
      job_.StartNode(node + 1 < nodes ? server_.port() : proxy_->port(), nnodes, more);
    }
    job_.AwaitWorkers();
    job_.ExpectAdditions();
  }
  // One direction of the last node's link stands still until the others go on without it, and then
  // carries on with all that was in it.
  void CutOneWay(TcpProxy::Direction direction) {
    StartJob(3, "2:3");
    const absl::Time cut = absl::Now();
    proxy_->Hold(direction, true);
    for (const size_t node : {0, 1}) EXPECT_EQ(job_.Workers(node, 2)[0].world, 4);
    printf("cut one way: the others run the next generation after %s\n",
           absl::FormatDuration(absl::Now() - cut).c_str());
    const int acknowledged = job_.Acknowledged(2, 1);
    EXPECT_GT(acknowledged, 0);
    proxy_->Hold(direction, false);
    // What it asked for in the meantime, of a generation that is over, changes nothing.
    for (const ProbeLine& worker : job_.workers(2)) {
      EXPECT_TRUE(WaitGone(worker.pid, kTimeout)) << OutputOf(job_.node(2));
    }
    // What the server had answered before it gave the node up was still on its way.
    const int late = direction == TcpProxy::kFromServer ? 2 : 0;
    EXPECT_LE(job_.Acknowledged(2, 1), acknowledged + late);
    // It is a spare now, and takes the place of the next one that dies.
    job_.KillNode(1);
    for (const size_t node : {0, 2}) EXPECT_EQ(job_.Workers(node, 3)[0].world, 4);
    job_.Finish();
  }

  MortalServer server_;
  std::unique_ptr<TcpProxy> proxy_;
  StoreJob job_{server_.token_file()};
};

// Fault (network): What a node sends to the server is held, until the others go on -> They go on
// when its lease ends; when the held data arrive its old workers are stopped and nothing of theirs
// counts
TEST_F(LossyWireTest, NothingReachesTheServer_TheOthersGoOnAndTheNodeComesBack) {
  CutOneWay(TcpProxy::kToServer);
}

// Fault (network): What the server sends to a node is held, until the others go on -> The agent
// gives the connection up, the others run the next generation, and later the node is a spare whose
// old workers count for nothing
TEST_F(LossyWireTest, NothingComesFromTheServer_TheOthersGoOnAndTheNodeComesBack) {
  CutOneWay(TcpProxy::kFromServer);
}

// Fault (network): Everything between a server and an agent is 0.3 s late in both directions ->
// Additions go on, and no connection and no node is lost
TEST_F(LossyWireTest, EverythingIsLate_NobodyIsLost) {
  StartJob(2, "2");
  proxy_->Delay(absl::Milliseconds(300));
  for (int times = 0; times < 2; ++times) job_.ExpectAdditions();
  job_.ExpectUndisturbed();
  job_.Finish();
  EXPECT_THAT(OutputOf(job_.node(1)), Not(HasSubstr("lost the rendezvous server")));
}

// Fault (network): A server's answers are lost with their connection, ten times, with
// `--strict-fencing` -> The agent asks again on the next connection; each addition counts once, and
// nothing restarts
TEST_F(LossyWireTest, AnswersAreLostAndAskedForAgain_EachAdditionCountsOnce) {
  // A node whose connection ends is lost a moment later, which a busy machine may need to come
  // back; with this it has its lease for that.
  StartJob(2, "2", {"--strict-fencing"});
  for (int times = 0; times < 10; ++times) {
    proxy_->Lose(TcpProxy::kFromServer);
    // The server has heard a request, or several, whose answers are lost.
    ASSERT_TRUE(
        proxy_->AwaitArrived(TcpProxy::kToServer, proxy_->arrived(TcpProxy::kToServer), kTimeout));
    proxy_->Reset();
    job_.ExpectAdditions();
  }
  job_.ExpectUndisturbed();
  // Each worker has compared each sum with its own count.
  job_.Finish();
  job_.ExpectOneGeneration();
}

}  // namespace
}  // namespace cadre
