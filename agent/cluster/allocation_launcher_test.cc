#include "agent/cluster/allocation_launcher.h"

#include <dlfcn.h>
#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "agent/cluster/allocations_directory.h"
#include "agent/cluster/gpu_devices.h"
#include "base/bearer_token.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

// If not 0, lookups in the user database fail with it.
int lookup_error = 0;

}  // namespace

// Overrides the C library's function.
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

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;
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

  const absl::StatusOr<std::unique_ptr<AllocationsDirectory>> directory_ =
      AllocationsDirectory::Make();
  LauncherOptions options_;
  v1::StartPart part_;
};

TEST_F(PartStartTest, TheLauncherIsToldWhatItNeedsAndTheTokenIsInAFile) {
  const auto frame = PrepareLauncher(options_, part_, {}, kServer);
  ASSERT_THAT(frame, IsOk());
  const std::string directory = options_.directory + "/part-12";
  EXPECT_THAT(frame->argv, ElementsAre("/opt/cadre", "run", "--spec=" + directory + "/job.binpb",
                                       "--rdzv-endpoint=head:29400",
                                       "--token-file=" + directory + "/token", "--node-name=n1",
                                       "--nproc-per-node=4", "--redirects=3", "--no-progress"));
  EXPECT_THAT(frame->argv, Not(Contains(HasSubstr("secret"))));
  // The token is valid for this allocation alone.
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
  const RetiredDirectory aside = RetireDirectory(options_, 12);
  EXPECT_NE(access(directory.c_str(), F_OK), 0);
  EXPECT_EQ(aside.uid, geteuid());
  EXPECT_TRUE(RemoveAsOwners(aside.path));
  EXPECT_NE(access(aside.path.c_str(), F_OK), 0);
  EXPECT_EQ(RetireDirectory(options_, 12).path, "");
}

TEST_F(PartStartTest, OfTheAgentsTlsFilesALauncherGetsTheAuthorityAlone) {
  std::string tls = ::testing::TempDir() + "/tls_XXXXXX";
  ASSERT_NE(mkdtemp(&tls[0]), nullptr);
  for (const char* name : {"/ca.pem", "/cert.pem", "/key.pem"}) {
    std::ofstream(tls + name) << "-----BEGIN " << name << "-----\n";
  }
  options_.tls_dir = tls;
  const auto frame = PrepareLauncher(options_, part_, {}, kServer);
  ASSERT_THAT(frame, IsOk());
  const std::string directory = options_.directory + "/part-12";
  EXPECT_THAT(frame->argv, Contains("--tls-dir=" + directory));
  EXPECT_THAT(frame->argv, Not(Contains(HasSubstr(tls))));
  EXPECT_EQ(Content(directory + "/ca.pem"), Content(tls + "/ca.pem"));
  EXPECT_NE(access((directory + "/key.pem").c_str(), F_OK), 0);
}

TEST_F(PartStartTest, WhatServesInClearIsSpokenToSo) {
  options_.insecure = true;
  const auto frame = PrepareLauncher(options_, part_, {}, kServer);
  ASSERT_THAT(frame, IsOk());
  EXPECT_THAT(frame->argv, Contains("--insecure"));
}

TEST_F(PartStartTest, TheEnvironmentIsTheUsersAndNotTheAgents) {
  const auto frame = PrepareLauncher(options_, part_, {}, kServer);
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
  EXPECT_THAT(PrepareLauncher(options_, part_, {2, 3}, kServer)->environment,
              Contains("CUDA_VISIBLE_DEVICES=2,3"));
  part_.mutable_part()->set_id(13);
  EXPECT_THAT(PrepareLauncher(options_, part_, {}, kServer)->environment,
              Contains("CUDA_VISIBLE_DEVICES="));
}

TEST_F(PartStartTest, GpusAreCalledByTheirNamesAndNoOthersCanBeOpened) {
  options_.has_gpus = true;
  options_.gpus = {{0, {"GPU-a", 3}}, {1, {"GPU-b", 2}}};
  const auto frame = PrepareLauncher(options_, part_, {1}, kServer);
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
  auto frame = PrepareLauncher(options_, part_, {}, kServer);
  ASSERT_THAT(frame, IsOk());
  EXPECT_EQ(frame->containment.memory_bytes, 0u) << "nobody said how much";
  EXPECT_EQ(frame->containment.max_pids, 32768u);
  part_.mutable_part()->set_id(13);
  part_.mutable_spec()->mutable_resources()->set_memory_per_worker(uint64_t{512} << 20);
  frame = PrepareLauncher(options_, part_, {}, kServer);
  ASSERT_THAT(frame, IsOk());
  EXPECT_EQ(frame->containment.memory_bytes, uint64_t{3} << 30);
  part_.mutable_part()->set_id(14);
  part_.mutable_spec()->mutable_resources()->set_memory_per_worker(UINT64_MAX);
  frame = PrepareLauncher(options_, part_, {}, kServer);
  ASSERT_THAT(frame, IsOk());
  EXPECT_EQ(frame->containment.memory_bytes, uint64_t{INT64_MAX}) << "more than any machine has";
}

TEST_F(PartStartTest, AnotherUsersJobNeedsRoot) {
  part_.set_user("nobody");
  const auto frame = PrepareLauncher(options_, part_, {}, kServer);
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
  // The user can traverse the directory, but not add files in it.
  ASSERT_EQ(stat((options_.directory + "/part-12").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, geteuid());
  EXPECT_EQ(info.st_mode & 0777, 0711u);
}

TEST_F(PartStartTest, RootsJobsAreRunOnlyWhereThatWasSaid) {
  options_.root_too = false;
  part_.set_user("root");
  EXPECT_THAT(PrepareLauncher(options_, part_, {}, kServer),
              StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_F(PartStartTest, AnUnknownUserIsNamed) {
  part_.set_user("no-such-user-here");
  EXPECT_THAT(PrepareLauncher(options_, part_, {}, kServer),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no-such-user-here")));
}

// A user whose entry cannot be read is not reported as unknown.
//
// Fault (queue): A cluster's agent has no descriptor to look up a user -> The error says so, and
// not that the user is unknown
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

// Fault (queue): The user database does not answer or fails -> The error says so, and not that the
// user is unknown
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
  // Some databases report these if they have no such user.
  for (const int error : {ENOENT, ESRCH}) {
    EXPECT_THAT(find(error), StatusIs(absl::StatusCode::kNotFound)) << error;
  }
}

class PartRenewalTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string made = ::testing::TempDir() + "/agent_XXXXXX";
    ASSERT_NE(mkdtemp(&made[0]), nullptr);
    token_file_ = made + "/token";
    tls_dir_ = made;
    ASSERT_OK(WriteTokenFile(token_file_, first_));
    std::ofstream(tls_dir_ + "/ca.pem") << "-----BEGIN FIRST-----\n";
    options_.launcher = "/opt/cadre";
    options_.server = "head:29400";
    options_.token = std::make_shared<RenewedToken>(first_, token_file_);
    options_.tls_dir = tls_dir_;
    options_.directory = (*directory_)->path();
    options_.root_too = true;
    renewal_ = std::make_unique<CredentialRenewal>(options_);
    part_.mutable_part()->set_id(12);
    part_.mutable_part()->set_job("mnist");
    part_.mutable_part()->set_node("n1");
    // When run as root, the allocation is another user's.
    part_.set_user(geteuid() == 0 ? "nobody" : ThisUser()->name);
    ASSERT_THAT(PrepareLauncher(options_, part_, {}, kServer), IsOk());
  }

  std::string Part(const std::string& file) const {
    return options_.directory + "/part-12/" + file;
  }

  const absl::StatusOr<std::unique_ptr<AllocationsDirectory>> directory_ =
      AllocationsDirectory::Make();
  const std::string first_ = RandomToken(), second_ = RandomToken();
  std::string token_file_;
  std::string tls_dir_;
  LauncherOptions options_;
  std::unique_ptr<CredentialRenewal> renewal_;
  v1::StartPart part_;
};

TEST_F(PartRenewalTest, ALauncherGetsATokenMadeFromTheNewOne) {
  renewal_->RenewOnce();
  EXPECT_EQ(Content(Part("token")), PartToken(first_, kServer, 12, "mnist") + "\n");
  ASSERT_OK(WriteTokenFile(token_file_, second_));
  renewal_->RenewOnce();
  EXPECT_EQ(Content(Part("token")), PartToken(second_, kServer, 12, "mnist") + "\n");
  struct stat info = {};
  ASSERT_EQ(stat(Part("token").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, FindUser(part_.user())->uid);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

// The user can write the file.
TEST_F(PartRenewalTest, WhatTheAgentHasNotSignedIsNotSignedNow) {
  const std::string forged = "part:13:others:0000000000000007:" + std::string(64, '0') + "\n";
  for (const std::string& content :
       {forged, PartToken(RandomToken(), kServer, 13, "others") + "\n",
        UserToken(first_, kServer, "ann", absl::InfiniteFuture()) + "\n", std::string()}) {
    std::ofstream(Part("token")) << content;
    ASSERT_OK(WriteTokenFile(token_file_, RandomToken()));
    renewal_->RenewOnce();
    EXPECT_EQ(Content(Part("token")), content);
  }
}

TEST_F(PartRenewalTest, ALauncherGetsTheNewAuthority) {
  std::ofstream(tls_dir_ + "/ca.pem") << "-----BEGIN SECOND-----\n";
  renewal_->RenewOnce();
  EXPECT_EQ(Content(Part("ca.pem")), "-----BEGIN SECOND-----\n");
  struct stat info = {};
  ASSERT_EQ(stat(Part("ca.pem").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, FindUser(part_.user())->uid);
}

// Evaluates the rules like the kernel's program: the first matching rule decides.
bool Allowed(const std::vector<supervisor::DeviceRule>& rules, uint32_t major, uint32_t minor) {
  for (const supervisor::DeviceRule& rule : rules) {
    if (rule.major == major && rule.first_minor <= minor && minor <= rule.last_minor) {
      return rule.allowed;
    }
  }
  return true;
}

TEST(GpusToGive, AreThoseFoundAndCalledByTheirUuid) {
  const std::vector<Gpu> found = {{2, "GPU-c", "H", {}, 0}, {3, "", "H", {}, std::nullopt}};
  const auto all = GpusToGive(found, std::nullopt);
  ASSERT_THAT(all, SizeIs(2));
  EXPECT_EQ(all.at(2).name, "GPU-c");
  EXPECT_EQ(all.at(2).minor, 0u) << "the driver counts otherwise";
  EXPECT_EQ(all.at(3).name, "3");
  EXPECT_EQ(all.at(3).minor, 3u);
  const auto one = GpusToGive(found, 1);
  ASSERT_THAT(one, SizeIs(1));
  EXPECT_EQ(one.count(2), 1u);
  const auto more = GpusToGive(found, 4);
  ASSERT_THAT(more, SizeIs(4));
  EXPECT_EQ(more.at(1).name, "1");
  EXPECT_THAT(GpusToGive({}, std::nullopt), IsEmpty());
  EXPECT_THAT(GpusToGive(found, 0), IsEmpty());
}

TEST(DeviceRules, OnlyGrantedGpusAndTheDriversControlNodes) {
  const GpuDevices devices = {{195}, {{226, 128, 0}, {226, 129, 1}}};
  const struct {
    std::set<uint32_t> granted;
    uint32_t major, minor;
    bool allowed;
  } kCases[] = {
      {{1}, 195, 0, false},  {{1}, 195, 1, true},   {{1}, 195, 2, false},  {{1}, 195, 255, true},
      {{1}, 195, 254, true}, {{}, 195, 0, false},   {{}, 195, 255, true},  {{1}, 226, 128, false},
      {{1}, 226, 129, true}, {{}, 226, 129, false}, {{1}, 226, 130, true}, {{1}, 1, 5, true},
      {{1}, 511, 0, true},  // nvidia-uvm
  };
  for (const auto& one : kCases) {
    EXPECT_EQ(Allowed(DeviceRules(one.granted, devices), one.major, one.minor), one.allowed)
        << one.major << ":" << one.minor << " of " << one.granted.size();
  }
}

class FindGpuDevicesTest : public ::testing::Test {
 protected:
  FindGpuDevicesTest() : root_(::testing::TempDir() + "/devices_XXXXXX") {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
  }
  ~FindGpuDevicesTest() override { fs::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  // Makes a graphics node of the card at this address.
  void Graphics(const std::string& name, const std::string& numbers,
                const std::string& address) const {
    const std::string card = "/sys/devices/pci0000:00/" + address;
    Write(card + "/drm/" + name + "/dev", numbers);
    fs::create_directory_symlink("../..", root_ + card + "/drm/" + name + "/device");
    fs::create_directories(root_ + "/sys/class/drm");
    fs::create_directory_symlink("../../devices/pci0000:00/" + address + "/drm/" + name,
                                 root_ + "/sys/class/drm/" + name);
  }

  std::string root_;
};

TEST_F(FindGpuDevicesTest, WithoutADriverItsNumberIsKnown) {
  const GpuDevices devices = FindGpuDevices(root_);
  EXPECT_THAT(devices.majors, ElementsAre(195));
  EXPECT_THAT(devices.graphics, IsEmpty());
}

TEST_F(FindGpuDevicesTest, GraphicsNodesAreFoundByTheirCard) {
  Write("/proc/devices",
        "Character devices:\n  1 mem\n195 nvidia\n194 nvidia-frontend\n510 nvidia-uvm\n\n"
        "Block devices:\n  8 nvidia\n");
  Write("/proc/driver/nvidia/gpus/0000:01:00.0/information",
        "Model: \t\t H\nDevice Minor: \t 1\nGPU Excluded:\t No\n");
  Graphics("renderD128", "226:128\n", "0000:00:02.0");
  Graphics("renderD129", "226:129\n", "0000:01:00.0");
  Graphics("card1", "226:1\n", "0000:01:00.0");
  const GpuDevices devices = FindGpuDevices(root_);
  EXPECT_THAT(devices.majors, ElementsAre(194, 195));
  std::map<uint32_t, uint32_t> gpus;
  for (const GraphicsNode& node : devices.graphics) {
    EXPECT_EQ(node.major, 226u);
    gpus[node.minor] = node.gpu_minor;
  }
  EXPECT_THAT(gpus, ElementsAre(Pair(1, 1), Pair(129, 1)));
}

}  // namespace
}  // namespace cadre::agent
