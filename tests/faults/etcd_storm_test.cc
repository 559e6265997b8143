// Two servers with one etcd that has no room left, stands still, or loses members: the job goes on
// with the same workers, and nothing that was acknowledged is lost. Skipped without etcd.
#include <signal.h>

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "tests/faults/server_group.h"
#include "tests/faults/store_job.h"
#include "tests/testing/etcd_process.h"

namespace cadre {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

// What etcd's JSON says, of those fields that are numbers in quotes.
std::string FieldOf(const std::string& json, const std::string& name) {
  const std::string field = EtcdProcess::Field(json, name);
  EXPECT_NE(field, "") << name << " in " << json;
  return field;
}

class EtcdStormTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!EtcdProcess::IsInstalled()) GTEST_SKIP() << "needs Debian's etcd-server";
  }
  // Server 0 leads, server 1 is a standby.
  void StartJob(std::unique_ptr<ServerGroup> group) {
    group_ = std::move(group);
    ASSERT_TRUE(group_->Start(0));
    ASSERT_TRUE(group_->AwaitLeads(0));
    ASSERT_TRUE(group_->Start(1));
    job_ = std::make_unique<StoreJob>(group_->token_file());
    for (int node = 0; node < 2; ++node) {
      job_->StartNodeAt(group_->endpoints(), "2", {"--orphan-timeout", "120s"});
    }
    job_->AwaitWorkers();
    job_->ExpectAdditions();
  }
  void AwaitSaid(const char* what) {
    EXPECT_TRUE(group_->server(0).WaitForLine(what, kTimeout).has_value())
        << OutputOf(group_->server(0));
  }
  void FinishJob() {
    job_->ExpectAdditions();
    job_->ExpectUndisturbed();
    job_->Finish();
    job_->ExpectOneGeneration();
  }

  std::unique_ptr<ServerGroup> group_;
  std::unique_ptr<StoreJob> job_;
};

// Fault (state): etcd is out of its quota -> Changes, and workers' store calls, fail with
// RESOURCE_EXHAUSTED; workers stay, and all goes on when an administrator has made room and
// disarmed the alarm
TEST_F(EtcdStormTest, OutOfItsQuota_ChangesAreRefusedUntilThereIsRoom) {
  group_ = std::make_unique<ServerGroup>(2);
  EtcdProcess& etcd = group_->etcd();
  etcd.SetQuota(8 << 20);
  ASSERT_TRUE(etcd.Start());
  ASSERT_TRUE(group_->Start(0));
  ASSERT_TRUE(group_->AwaitLeads(0));
  // Workers that ask nothing of the store, whose every addition would be refused.
  const std::string done = MakeTempDir("done") + "/done";
  std::vector<std::unique_ptr<Process>> nodes;
  std::vector<ProbeLine> workers;
  const auto start = [&](int node) {
    nodes.push_back(group_->StartNode(
        node, "1:2",
        {"--settle", "0s", "--scale-up", "never", "/bin/sh", "-c",
         absl::StrCat("echo \"probe rank=$RANK generation=$CADRE_GENERATION pid=$$\"; until [ -e ",
                      done, " ]; do sleep 0.02; done")}));
  };
  start(0);
  workers = NextProbes(*nodes[0], 2, kTimeout);
  ASSERT_EQ(workers.size(), 2u) << OutputOf(*nodes[0]);
  // Somebody else fills it. In base64: a key of its own, and a MiB of zeros.
  const std::string ballast = absl::StrCat("{\"key\":\"YmFsbGFzdA==\",\"value\":\"",
                                           std::string((1 << 20) / 3 * 4, 'A'), "\"}");
  std::string answer;
  const absl::Time until = absl::Now() + kTimeout;
  while (!absl::StrContains(answer, "database space exceeded") && absl::Now() < until) {
    answer = etcd.Post("/v3/kv/put", ballast);
  }
  // A node that comes is a change.
  start(1);
  AwaitSaid("database space exceeded; the server refuses changes");
  for (const ProbeLine& worker : workers) EXPECT_TRUE(IsAlive(worker.pid));
  // As an administrator does, with etcdctl.
  const std::string deleted = etcd.Post("/v3/kv/deleterange", "{\"key\":\"YmFsbGFzdA==\"}");
  etcd.Post("/v3/kv/compaction",
            absl::StrCat("{\"revision\":\"", FieldOf(deleted, "revision"), "\"}"));
  etcd.Post("/v3/maintenance/defragment", "{}");
  const std::string alarm = etcd.Post("/v3/maintenance/alarm", "{\"action\":\"GET\"}");
  etcd.Post("/v3/maintenance/alarm",
            absl::StrCat("{\"action\":\"DEACTIVATE\",\"alarm\":\"NOSPACE\",\"memberID\":\"",
                         FieldOf(alarm, "memberID"), "\"}"));
  AwaitSaid("state can be saved again");
  for (const ProbeLine& worker : workers) EXPECT_TRUE(IsAlive(worker.pid));
  std::ofstream(done) << "now";
  EXPECT_EQ(nodes[0]->Wait(kTimeout), 0) << OutputOf(*nodes[0]);
}

// Fault (state): etcd stands still for a while -> Changes are refused and workers stay; all goes on
// by itself, with the same leader or another
TEST_F(EtcdStormTest, StandsStill_ChangesAreRefusedUntilItGoesOn) {
  auto group = std::make_unique<ServerGroup>(2);
  EtcdProcess& etcd = group->etcd();
  ASSERT_TRUE(etcd.Start());
  StartJob(std::move(group));
  etcd.Pause();
  AwaitSaid("refuses changes");
  job_->ExpectUndisturbed();
  etcd.Resume();
  FinishJob();
}

// Fault (state): Of three members of etcd the leading one is killed, then a second one -> Additions
// go on after the first; without a majority changes are refused, until there is one again
TEST_F(EtcdStormTest, OfThreeMembersTheOneThatLeadsIsKilled_AndThenASecondOne) {
  EtcdCluster cluster;
  StartJob(std::make_unique<ServerGroup>(2, cluster.urls()));
  const size_t leader = cluster.Leader();
  ASSERT_LT(leader, EtcdCluster::kMembers);
  cluster.member(leader).Kill();
  job_->ExpectAdditions();
  job_->ExpectUndisturbed();
  // One of three keeps nothing.
  const size_t second = (leader + 1) % EtcdCluster::kMembers;
  cluster.member(second).Kill();
  AwaitSaid("refuses changes");
  job_->ExpectUndisturbed();
  ASSERT_TRUE(cluster.member(second).Start());
  FinishJob();
}

}  // namespace
}  // namespace cadre
