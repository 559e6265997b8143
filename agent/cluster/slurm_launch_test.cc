#include "agent/cluster/slurm_launch.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "absl/strings/strip.h"
#include "agent/cluster/allocations_directory.h"
#include "base/bearer_token.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

constexpr uint64_t kServer = 7;

std::string Content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777;
}

TEST(ScriptCommandTest, IsTheKernels) {
  EXPECT_THAT(ScriptCommand("#!/bin/bash\necho\n", "/p/s"), ElementsAre("/bin/bash", "/p/s"));
  EXPECT_THAT(ScriptCommand("#! /bin/bash -l -x \n", "/p/s"),
              ElementsAre("/bin/bash", "-l -x", "/p/s"));
  EXPECT_THAT(ScriptCommand("#!/usr/bin/env\tpython3", "/p/s"),
              ElementsAre("/usr/bin/env", "python3", "/p/s"));
  for (const char* without : {"", "echo\n", "#!\necho\n", "# /bin/bash\n"}) {
    EXPECT_THAT(ScriptCommand(without, "/p/s"), ElementsAre("/bin/sh", "/p/s")) << without;
  }
}

class SlurmLaunchTest : public testing::Test {
 protected:
  SlurmLaunchTest() {
    options_.launcher = "/opt/cadre";
    options_.server = "head:29400";
    options_.token = std::make_shared<RenewedToken>(secret_, "");
    options_.directory = (*directory_)->path();
    options_.root_too = true;
    start_.mutable_part()->set_id(12);
    start_.mutable_part()->set_job("train");
    start_.mutable_part()->set_node("node1");
    start_.mutable_part()->set_workers(4);
    start_.set_user(ThisUser()->name);
    start_.set_job_id(7);
    start_.set_job_name("train.sh");
    for (const char* node : {"node1", "node2"}) start_.add_nodes(node);
    v1::JobSpec& spec = *start_.mutable_spec();
    spec.set_name("train");
    spec.add_command("train.sh");
    spec.mutable_nodes()->set_min(2);
    spec.mutable_nodes()->set_max(2);
    spec.mutable_workers_per_node()->set_kind(v1::WorkersPerNode::COUNT);
    spec.mutable_workers_per_node()->set_count(4);
  }
  void MakeBatch() {
    start_.mutable_spec()->mutable_batch()->set_script("#!/bin/bash -l\necho hello\n");
    start_.mutable_spec()->mutable_batch()->add_args("--fast");
    start_.mutable_spec()->mutable_placement()->set_bind("numa");
  }
  void MakeStep() {
    start_.set_step_of(5);
    start_.set_step(1);
    start_.add_batch_nodes("node1");
    start_.mutable_spec()->mutable_slurm_step();
  }
  void Export(const std::string& name, const std::string& value) {
    (*start_.mutable_spec()->mutable_env())[name] = value;
  }

  // The frame, and in spec_ and env_ what the launcher reads.
  absl::StatusOr<supervisor::StartFrame> Prepare(uint64_t server_id = kServer) {
    const auto frame = PrepareLauncher(options_, start_, {3}, server_id);
    if (!frame.ok()) return frame;
    EXPECT_TRUE(spec_.ParseFromString(Content(Part("job.binpb"))));
    env_ = {spec_.env().begin(), spec_.env().end()};
    return frame;
  }
  std::string Part(const std::string& file) const {
    return options_.directory + "/part-12/" + file;
  }
  std::optional<Bearer> BearerOf(const std::string& secret) const {
    return VerifiedBearer(secret, absl::StripSuffix(Content(Part(kUserToken)), "\n"));
  }

  const absl::StatusOr<std::unique_ptr<AllocationsDirectory>> directory_ =
      AllocationsDirectory::Make();
  const std::string secret_ = RandomToken();
  LauncherOptions options_;
  v1::StartPart start_;
  v1::JobSpec spec_;
  std::map<std::string, std::string> env_;
};

TEST_F(SlurmLaunchTest, AScriptIsTheOneWorkerOfItsLauncher) {
  MakeBatch();
  const auto frame = Prepare();
  ASSERT_THAT(frame, IsOk());
  EXPECT_EQ(Content(Part(kBatchScript)), "#!/bin/bash -l\necho hello\n");
  EXPECT_EQ(ModeOf(Part(kBatchScript)), 0700u);
  EXPECT_THAT(spec_.command(), ElementsAre("/bin/bash", "-l", Part(kBatchScript), "--fast"));
  EXPECT_EQ(spec_.nodes().max(), 1u);
  EXPECT_EQ(spec_.workers_per_node().count(), 1u);
  EXPECT_TRUE(spec_.has_batch());
  EXPECT_EQ(spec_.batch().script(), "");
  EXPECT_EQ(spec_.placement().bind(), "");
  EXPECT_THAT(frame->argv, Contains("--nproc-per-node=1"));
  EXPECT_THAT(frame->environment,
              AllOf(Contains("CADRE_CLUSTER_NODES=node1"), Contains("CADRE_JOB_ID=7")));
}

TEST_F(SlurmLaunchTest, CommandsInAScriptActForItsUser) {
  MakeBatch();
  ASSERT_THAT(Prepare(), IsOk());
  EXPECT_THAT(env_, Contains(Pair("CADRE_SERVER", "head:29400")));
  EXPECT_THAT(env_, Contains(Pair("CADRE_TOKEN_FILE", Part(kUserToken))));
  EXPECT_THAT(env_, Not(Contains(Key("CADRE_INSECURE"))));
  EXPECT_THAT(env_, Not(Contains(Key("CADRE_TLS_DIR"))));
  EXPECT_THAT(env_, Contains(Pair("SLURM_JOB_ID", "7")));
  EXPECT_THAT(env_, Contains(Pair("SLURM_JOB_GPUS", "3")));
  EXPECT_THAT(env_, Contains(Pair("SLURM_JOB_UID", std::to_string(geteuid()))));
  EXPECT_EQ(ModeOf(Part(kUserToken)), 0600u);
  const std::optional<Bearer> bearer = BearerOf(secret_);
  ASSERT_TRUE(bearer.has_value());
  EXPECT_EQ(bearer->kind, Bearer::Kind::kUser);
  EXPECT_EQ(bearer->user, start_.user());
  EXPECT_EQ(bearer->server_id, kServer);
  EXPECT_LE(bearer->ends, absl::Now() + kUserTokenLifetime);
}

TEST_F(SlurmLaunchTest, WhatTheShellExportedGivesWay) {
  MakeBatch();
  options_.has_gpus = true;
  options_.insecure = true;
  for (const char* name :
       {"CADRE_TOKEN_FILE", "CADRE_SERVER", "CADRE_TLS_DIR", "CADRE_AGENT", "CADRE_GENERATION",
        "CADRE_USER_TOKEN_FILE", "XDG_RUNTIME_DIR", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID",
        "SLURM_STEP_NODELIST", "SLURM_ARRAY_TASK_ID", "PATH", "MASTER_PORT", "CADRE_LOG_DIR",
        "SLURM_EXPORT_ENV"}) {
    Export(name, "theirs");
  }
  const auto frame = Prepare();
  ASSERT_THAT(frame, IsOk());
  EXPECT_EQ(env_["CADRE_TOKEN_FILE"], Part(kUserToken));
  EXPECT_EQ(env_["CADRE_INSECURE"], "1");
  EXPECT_EQ(env_["SLURM_JOB_ID"], "7");
  for (const char* name :
       {"CADRE_TLS_DIR", "CADRE_AGENT", "CADRE_GENERATION", "CADRE_USER_TOKEN_FILE",
        "XDG_RUNTIME_DIR", "CUDA_VISIBLE_DEVICES", "SLURM_STEP_NODELIST", "SLURM_ARRAY_TASK_ID"}) {
    EXPECT_EQ(env_.count(name), 0u) << name;
  }
  for (const char* name : {"PATH", "MASTER_PORT", "CADRE_LOG_DIR", "SLURM_EXPORT_ENV"}) {
    EXPECT_EQ(env_[name], "theirs") << name;
  }
  EXPECT_THAT(frame->environment, Contains("CUDA_VISIBLE_DEVICES=3"));
}

TEST_F(SlurmLaunchTest, WhereCertificatesAreRequiredUsersHaveTheirOwn) {
  MakeBatch();
  std::string tls = ::testing::TempDir() + "/tls_XXXXXX";
  ASSERT_NE(mkdtemp(&tls[0]), nullptr);
  std::ofstream(tls + "/ca.pem") << "-----BEGIN CA-----\n";
  options_.tls_dir = tls;
  ASSERT_THAT(Prepare(), IsOk());
  EXPECT_EQ(env_["CADRE_TLS_DIR"], options_.directory + "/part-12");
  EXPECT_TRUE(RemoveAsOwners(RetireDirectory(options_, 12).path));
  Export("CADRE_TLS_DIR", "/home/ann/tls");
  ASSERT_THAT(Prepare(), IsOk());
  EXPECT_EQ(env_["CADRE_TLS_DIR"], "/home/ann/tls");
}

TEST_F(SlurmLaunchTest, AStepKeepsItsProgramAndGetsVariables) {
  MakeStep();
  options_.insecure = true;
  Export("SLURM_SUBMIT_DIR", "/home/ann");
  Export("CADRE_TLS_DIR", "/part-9");
  const auto frame = Prepare();
  ASSERT_THAT(frame, IsOk());
  EXPECT_THAT(spec_.command(), ElementsAre("train.sh"));
  EXPECT_EQ(spec_.workers_per_node().count(), 4u);
  EXPECT_THAT(frame->argv, Contains("--nproc-per-node=4"));
  EXPECT_THAT(frame->environment, Contains("CADRE_CLUSTER_NODES=node1,node2"));
  EXPECT_EQ(env_["SLURM_JOB_ID"], "5");
  EXPECT_EQ(env_["SLURM_STEP_ID"], "1");
  EXPECT_EQ(env_["SLURM_STEP_GPUS"], "3");
  EXPECT_EQ(env_["SLURM_SUBMIT_DIR"], "/home/ann");
  EXPECT_EQ(env_["CADRE_SERVER"], "head:29400");
  EXPECT_EQ(env_["CADRE_USER_TOKEN_FILE"], Part(kUserToken));
  // These would also count for a launcher that a task starts.
  for (const char* name : {"CADRE_TOKEN_FILE", "CADRE_INSECURE", "CADRE_TLS_DIR"}) {
    EXPECT_EQ(env_.count(name), 0u) << name;
  }
  EXPECT_NE(access(Part(kBatchScript).c_str(), F_OK), 0);
}

TEST_F(SlurmLaunchTest, AServerThatDoesNotSayWhichItIsGetsNoToken) {
  MakeBatch();
  ASSERT_THAT(Prepare(/*server_id=*/0), IsOk());
  EXPECT_THAT(env_, Not(Contains(Key("CADRE_TOKEN_FILE"))));
  EXPECT_NE(access(Part(kUserToken).c_str(), F_OK), 0);
}

TEST_F(SlurmLaunchTest, OtherJobsGetNeither) {
  ASSERT_THAT(Prepare(), IsOk());
  EXPECT_EQ(spec_.SerializeAsString(), start_.spec().SerializeAsString());
  EXPECT_NE(access(Part(kUserToken).c_str(), F_OK), 0);
}

class UserTokenTest : public SlurmLaunchTest {
 protected:
  void SetUp() override {
    MakeBatch();
    // When run as root, the allocation is another user's.
    if (geteuid() == 0) start_.set_user("nobody");
    ASSERT_THAT(Prepare(), IsOk());
    first_ = Content(Part(kUserToken));
  }
  // Renews as if so much time had passed; returns whether the token is another one.
  bool Renew(absl::Duration later, const std::string& secret) {
    RenewUserToken(options_.directory + "/part-12", secret, absl::Now() + later);
    return Content(Part(kUserToken)) != first_;
  }

  std::string first_;
};

TEST_F(UserTokenTest, ItIsReplacedWhenHalfOfItsLifeIsOver) {
  EXPECT_FALSE(Renew(kUserTokenLifetime / 2 - absl::Minutes(1), secret_));
  EXPECT_TRUE(Renew(kUserTokenLifetime / 2 + absl::Minutes(1), secret_));
  EXPECT_GT(BearerOf(secret_)->ends, absl::Now() + kUserTokenLifetime);
  struct stat info = {};
  ASSERT_EQ(stat(Part(kUserToken).c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, FindUser(start_.user())->uid);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(UserTokenTest, ItIsMadeFromTheClustersNewToken) {
  const std::string other = RandomToken();
  EXPECT_TRUE(Renew(absl::ZeroDuration(), other));
  EXPECT_TRUE(BearerOf(other).has_value());
  EXPECT_EQ(BearerOf(other)->user, start_.user());
}

// The user can write the file, and may have tokens of other users, which must not live on.
//
// Fault (access): A user writes another user's token into the token file of a batch script -> The
// agent replaces it, and prolongs no other user's token
TEST_F(UserTokenTest, ItIsAlwaysTheJobsUsers) {
  for (const std::string& content :
       {UserToken(secret_, kServer, "bob", absl::Now() + absl::Hours(1)),
        UserToken(secret_, kServer + 1, start_.user(), absl::Now() + absl::Hours(100)), secret_,
        std::string()}) {
    std::ofstream(Part(kUserToken)) << content << "\n";
    Renew(absl::ZeroDuration(), secret_);
    ASSERT_TRUE(BearerOf(secret_).has_value()) << content;
    EXPECT_EQ(BearerOf(secret_)->kind, Bearer::Kind::kUser);
    EXPECT_EQ(BearerOf(secret_)->user, start_.user());
    EXPECT_EQ(BearerOf(secret_)->server_id, kServer);
  }
  // Nor can the user say whose it is.
  EXPECT_EQ(Content(Part(kUserTokenOwner)), start_.user() + "\n7\n");
  struct stat info = {};
  ASSERT_EQ(stat(Part(kUserTokenOwner).c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, geteuid());
}

TEST_F(UserTokenTest, TheAgentRenewsIt) {
  CredentialRenewal renewal(options_);
  renewal.RenewOnce();
  EXPECT_EQ(Content(Part(kUserToken)), first_);
  CredentialRenewal later(options_);
  later.RenewOnce(absl::Now() + kUserTokenLifetime);
  EXPECT_NE(Content(Part(kUserToken)), first_);
}

TEST_F(UserTokenTest, WhatIsNoFileOfTheAgentsIsLeftAlone) {
  ASSERT_EQ(unlink(Part(kUserTokenOwner).c_str()), 0);
  EXPECT_FALSE(Renew(kUserTokenLifetime, secret_));
  ASSERT_EQ(unlink(Part(kUserToken).c_str()), 0);
  Renew(kUserTokenLifetime, secret_);
  EXPECT_NE(access(Part(kUserToken).c_str(), F_OK), 0);
}

}  // namespace
}  // namespace cadre::agent
