// A state directory that Cadre 0.2.0 wrote, and left in the middle of a job when it was killed, can
// be continued by this version: testdata/state_0_2_0.
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "rendezvous/core/core.h"
#include "rendezvous/log/sqlite_log.h"

namespace cadre {
namespace {

constexpr char kWritten[] = "rendezvous/host/testdata/state_0_2_0/";

class StateBeforeTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    for (const std::string file : {"state.db", "tail"}) {
      std::filesystem::copy(kWritten + file, directory_);
      std::filesystem::permissions(directory_ + "/" + file, std::filesystem::perms::owner_write,
                                   std::filesystem::perm_options::add);
    }
    options_.directory = directory_;
    options_.clock = {"another boot", 1795684101459579};
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string directory_ = "/tmp/cadre_before_XXXXXX";
  log::SqliteLogOptions options_;
};

// Fault (versions): A server finds the state of the version before, left after a `kill -9` -> It
// reads that state and continues with it
TEST_F(StateBeforeTest, IsReadAndGoneOnWith) {
  absl::StatusOr<log::OpenedLog> opened = log::OpenSqliteLog(options_);
  ASSERT_OK(opened);
  EXPECT_EQ(opened->log->server_id(), 5749869987758487164u);
  Core core{CoreConfig()};
  for (const v1::Record& record : opened->records) core.Apply(record);
  const auto status = [&](const char* job) { return *core.Status(MonoTime(), job); };
  EXPECT_EQ(status("ended").phase(), v1::SUCCEEDED);
  EXPECT_EQ(status("queued").phase(), v1::QUEUED);
  EXPECT_EQ(status("queued").user(), "root");
  const v1::JobStatus running = status("running");
  EXPECT_EQ(running.phase(), v1::RUNNING);
  EXPECT_EQ(running.workers_running(), 2u);
  EXPECT_EQ(running.max_restarts(), 3u);
  EXPECT_EQ(running.started_by(), "") << "what nodes brought was the administrators'";
  ASSERT_EQ(core.ClusterNodes().size(), 1u);
  EXPECT_TRUE(core.ClusterNodes()[0].drained());
  EXPECT_EQ(core.ClusterNodes()[0].labels().at("switch"), "s1");
  const size_t before = opened->records.size();
  EXPECT_EQ(before, 16u);
  v1::Record more;
  more.mutable_cluster_node_set()->mutable_node()->set_name("n2");
  ASSERT_OK(opened->log->Append({more}));
  opened->log.reset();
  opened = log::OpenSqliteLog(options_);
  ASSERT_OK(opened);
  EXPECT_EQ(opened->records.size(), before + 1);
}

}  // namespace
}  // namespace cadre
