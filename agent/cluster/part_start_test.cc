#include "agent/cluster/part_start.h"

#include <dlfcn.h>
#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "agent/cluster/part_removal.h"
#include "agent/cluster/parts_directory.h"
#include "base/bearer_token.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

// Other than 0: with it the user database fails.
int lookup_error = 0;

}  // namespace

// Comes before the C library's.
extern "C" int getpwnam_r(const char* name, passwd* entry, char* text, size_t size,
                          passwd** found) {
  if (lookup_error != 0) {
    *found = nullptr;
    return lookup_error;
  }
  using Lookup = int (*)(const char*, passwd*, char*, size_t, passwd**);
  static const auto real = reinterpret_cast<Lookup>(dlsym(RTLD_NEXT, "getpwnam_r"));
  return real(name, entry, text, size, found);
}

namespace cadre::agent {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uint64_t kServer = 7;
constexpr char kSecret[] = "a-secret-of-the-cluster";

std::string Content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class PartStartTest : public testing::Test {
 protected:
  PartStartTest() {
    options_.launcher = "/opt/cadre";
    options_.server = "head:29400";
    options_.token = std::make_shared<RenewedToken>(kSecret, "");
    options_.environment = {{"PATH", "/bin"}, {"SLURM_PROCID", "3"}, {"CADRE_NNODES", "7"}};
    options_.directory = (*directory_)->path();
    options_.root_too = true;
    part_.mutable_part()->set_id(12);
    part_.mutable_part()->set_job("mnist");
    part_.mutable_part()->set_node("n1");
    part_.mutable_part()->set_workers(4);
    part_.mutable_spec()->set_name("mnist");
    part_.set_user(ThisUser()->name);
    part_.add_nodes("n1");
    part_.add_nodes("n2");
  }

  const absl::StatusOr<std::unique_ptr<PartsDirectory>> directory_ = PartsDirectory::Make();
  PartStartOptions options_;
  v1::StartPart part_;
};

TEST_F(PartStartTest, TheLauncherIsToldWhatItNeedsAndTheTokenIsInAFile) {
  const auto frame = PreparePart(options_, part_, {}, kServer);
  ASSERT_THAT(frame, IsOk());
  const std::string directory = options_.directory + "/part-12";
  EXPECT_THAT(frame->argv, ElementsAre("/opt/cadre", "run", "--spec=" + directory + "/job.binpb",
                                       "--rdzv-endpoint=head:29400",
                                       "--token-file=" + directory + "/token", "--node-name=n1",
                                       "--nproc-per-node=4", "--redirects=3", "--no-progress"));
  EXPECT_THAT(frame->argv, Not(Contains(HasSubstr("secret"))));
  // Good for this part alone.
  EXPECT_EQ(Content(directory + "/token"), PartToken(kSecret, kServer, 12, "mnist") + "\n");
  v1::JobSpec spec;
  ASSERT_TRUE(spec.ParseFromString(Content(directory + "/job.binpb")));
  EXPECT_EQ(spec.name(), "mnist");
  for (const std::string& path :
       {directory, directory + "/token", directory + "/job.binpb", directory + "/run"}) {
    struct stat info = {};
    ASSERT_EQ(stat(path.c_str(), &info), 0) << path;
    EXPECT_EQ(info.st_mode & 077, 0u) << path;
  }
  const AsidePart aside = SetAsidePart(options_, 12);
  EXPECT_NE(access(directory.c_str(), F_OK), 0);
  EXPECT_EQ(aside.uid, geteuid());
  EXPECT_TRUE(RemoveAsOwners(aside.path));
  EXPECT_NE(access(aside.path.c_str(), F_OK), 0);
  EXPECT_EQ(SetAsidePart(options_, 12).path, "");
}

TEST_F(PartStartTest, OfTheAgentsTlsFilesALauncherGetsTheAuthorityAlone) {
  std::string tls = ::testing::TempDir() + "/tls_XXXXXX";
  ASSERT_NE(mkdtemp(&tls[0]), nullptr);
  for (const char* name : {"/ca.pem", "/cert.pem", "/key.pem"}) {
    std::ofstream(tls + name) << "-----BEGIN " << name << "-----\n";
  }
  options_.tls_dir = tls;
  const auto frame = PreparePart(options_, part_, {}, kServer);
  ASSERT_THAT(frame, IsOk());
  const std::string directory = options_.directory + "/part-12";
  EXPECT_THAT(frame->argv, Contains("--tls-dir=" + directory));
  EXPECT_THAT(frame->argv, Not(Contains(HasSubstr(tls))));
  EXPECT_EQ(Content(directory + "/ca.pem"), Content(tls + "/ca.pem"));
  EXPECT_NE(access((directory + "/key.pem").c_str(), F_OK), 0);
}

TEST_F(PartStartTest, WhatServesInClearIsSpokenToSo) {
  options_.insecure = true;
  const auto frame = PreparePart(options_, part_, {}, kServer);
  ASSERT_THAT(frame, IsOk());
  EXPECT_THAT(frame->argv, Contains("--insecure"));
}

TEST_F(PartStartTest, TheEnvironmentIsTheUsersAndNotTheAgents) {
  const auto frame = PreparePart(options_, part_, {}, kServer);
  ASSERT_THAT(frame, IsOk());
  EXPECT_THAT(frame->environment,
              AllOf(Contains("PATH=/bin"), Contains("HOME=" + ThisUser()->home),
                    Contains("CADRE_CLUSTER_PART=12"), Contains("CADRE_CLUSTER_NODES=n1,n2"),
                    Contains("XDG_RUNTIME_DIR=" + options_.directory + "/part-12/run")));
  EXPECT_THAT(frame->environment, Not(Contains(StartsWith("SLURM_"))));
  EXPECT_THAT(frame->environment, Not(Contains(StartsWith("CADRE_NNODES"))));
  EXPECT_THAT(frame->environment, Not(Contains(StartsWith("CUDA_VISIBLE_DEVICES"))));
}

TEST_F(PartStartTest, APartSeesItsGpusAlone) {
  options_.has_gpus = true;
  EXPECT_THAT(PreparePart(options_, part_, {2, 3}, kServer)->environment,
              Contains("CUDA_VISIBLE_DEVICES=2,3"));
  part_.mutable_part()->set_id(13);
  EXPECT_THAT(PreparePart(options_, part_, {}, kServer)->environment,
              Contains("CUDA_VISIBLE_DEVICES="));
}

TEST_F(PartStartTest, GpusAreCalledByTheirNamesAndNoOthersCanBeOpened) {
  options_.has_gpus = true;
  options_.gpus = {{0, {"GPU-a", 3}}, {1, {"GPU-b", 2}}};
  const auto frame = PreparePart(options_, part_, {1}, kServer);
  ASSERT_THAT(frame, IsOk());
  EXPECT_THAT(frame->environment, Contains("CUDA_VISIBLE_DEVICES=GPU-b"));
  const supervisor::Containment& containment = frame->containment;
  ASSERT_EQ(containment.asked, geteuid() == 0);
  if (!containment.asked) return;
  EXPECT_EQ(containment.uid, ThisUser()->uid);
  EXPECT_EQ(containment.gid, ThisUser()->gid);
  ASSERT_FALSE(containment.devices.empty());
  EXPECT_EQ(containment.devices[0].first_minor, 2u);
  EXPECT_TRUE(containment.devices[0].allowed);
}

TEST_F(PartStartTest, MemoryIsThatOfItsWorkersAndOfTheLauncher) {
  if (geteuid() != 0) GTEST_SKIP() << "needs to be root";
  auto frame = PreparePart(options_, part_, {}, kServer);
  ASSERT_THAT(frame, IsOk());
  EXPECT_EQ(frame->containment.memory_bytes, 0u) << "nobody said how much";
  EXPECT_EQ(frame->containment.max_pids, 32768u);
  part_.mutable_part()->set_id(13);
  part_.mutable_spec()->mutable_resources()->set_memory_per_worker(uint64_t{512} << 20);
  frame = PreparePart(options_, part_, {}, kServer);
  ASSERT_THAT(frame, IsOk());
  EXPECT_EQ(frame->containment.memory_bytes, uint64_t{3} << 30);
  part_.mutable_part()->set_id(14);
  part_.mutable_spec()->mutable_resources()->set_memory_per_worker(UINT64_MAX);
  frame = PreparePart(options_, part_, {}, kServer);
  ASSERT_THAT(frame, IsOk());
  EXPECT_EQ(frame->containment.memory_bytes, 0u) << "more than any machine has";
}

TEST_F(PartStartTest, AnotherUsersJobNeedsRoot) {
  part_.set_user("nobody");
  const auto frame = PreparePart(options_, part_, {}, kServer);
  if (geteuid() != 0) {
    EXPECT_THAT(frame, StatusIs(absl::StatusCode::kPermissionDenied));
    return;
  }
  ASSERT_THAT(frame, IsOk());
  EXPECT_EQ(frame->argv[0], "setpriv");
  EXPECT_THAT(frame->argv, Contains("--init-groups"));
  const UserEntry nobody = *FindUser("nobody");
  struct stat info = {};
  ASSERT_EQ(stat((options_.directory + "/part-12/token").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, nobody.uid);
  ASSERT_EQ(stat((options_.directory + "/part-12/run").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, nobody.uid);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  // It may pass through the directory, and leave nothing beside that one there.
  ASSERT_EQ(stat((options_.directory + "/part-12").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, geteuid());
  EXPECT_EQ(info.st_mode & 0777, 0711u);
}

TEST_F(PartStartTest, RootsJobsAreRunOnlyWhereThatWasSaid) {
  options_.root_too = false;
  part_.set_user("root");
  EXPECT_THAT(PreparePart(options_, part_, {}, kServer),
              StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_F(PartStartTest, AnUnknownUserIsNamed) {
  part_.set_user("no-such-user-here");
  EXPECT_THAT(PreparePart(options_, part_, {}, kServer),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no-such-user-here")));
}

// Whose entry cannot be read is not taken for nobody.
TEST_F(PartStartTest, WithoutADescriptorNobodyIsSaidToBeUnknown) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::StatusOr<UserEntry> found = FindUser("daemon");
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_THAT(found.status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("Too many open files")));
  EXPECT_OK(FindUser("daemon"));
}

TEST_F(PartStartTest, WhereTheLookupFailsNobodyIsSaidToBeUnknown) {
  const auto find = [](int error) {
    lookup_error = error;
    const absl::StatusOr<UserEntry> found = FindUser("daemon");
    lookup_error = 0;
    return found.status();
  };
  for (const int error : {EIO, EAGAIN, ENOMEM}) {
    EXPECT_THAT(find(error),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cannot look user daemon up")))
        << error;
  }
  // So some databases say that they have no such user.
  for (const int error : {ENOENT, ESRCH}) {
    EXPECT_THAT(find(error), StatusIs(absl::StatusCode::kNotFound)) << error;
  }
}

}  // namespace
}  // namespace cadre::agent
