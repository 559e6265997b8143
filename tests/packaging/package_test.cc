// The Debian package, installed, used and removed in a root of its own. Needs root and overlayfs.
#include <unistd.h>

#include <fstream>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// As an administrator without systemd does it: a server, whose number is $server, on $port.
constexpr char kInstalledServer[] =
    "dpkg -i /tmp/cadre.deb\n"
    "ip link set lo up || true\n"
    "cadre token new /etc/cadre/token\n"
    "chgrp cadre /etc/cadre/token\n"
    "chmod 640 /etc/cadre/token\n"
    "cat > /etc/cadre/cadre.yaml <<'end'\n"
    "server: {port: 0, token-file: /etc/cadre/token, state-dir: /var/lib/cadre/state}\n"
    "end\n"
    "setpriv --reuid=cadre --regid=cadre --clear-groups cadre server > /tmp/log 2>&1 &\n"
    "server=$!\n"
    "for i in $(seq 200); do grep -q 'serving at' /tmp/log && break; sleep 0.05; done\n"
    "port=$(sed -n 's/.*serving at 127.0.0.1:\\([0-9]*\\).*/\\1/p' /tmp/log)\n";

class PackageTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can install a package";
    std::ifstream file("/proc/filesystems");
    const std::string systems((std::istreambuf_iterator<char>(file)), {});
    if (systems.find("overlay") == std::string::npos) GTEST_SKIP() << "needs overlayfs";
  }

  static std::unique_ptr<Process> InCleanRoot(const std::string& script) {
    ProcessOptions options;
    options.argv = {"tests/packaging/clean_root.sh",
                    MakeTempDir("root"),
                    script,
                    "tools/debian/cadre.deb",
                    "tools/library/libcadre0.deb",
                    "tools/library/libcadre-dev.deb"};
    auto process = RunToEnd(options, absl::Minutes(2));
    EXPECT_OK(process);
    return process.ok() ? *std::move(process) : nullptr;
  }
};

TEST_F(PackageTest, InstalledAndPurged_NothingIsLeft) {
  const auto run = InCleanRoot("dpkg -i /tmp/cadre.deb; dpkg -P cadre");
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), Not(HasSubstr("left: "))) << OutputOf(*run);
}

TEST_F(PackageTest, AMaintainerIsNamed) {
  const auto run = InCleanRoot(
      "for one in cadre libcadre0 libcadre-dev; do dpkg-deb --field /tmp/$one.deb Maintainer; "
      "done");
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), Not(HasSubstr("localhost")));
  EXPECT_THAT(run->standard_output(), Not(HasSubstr("@MAINTAINER@")));
  EXPECT_THAT(run->standard_output(), HasSubstr("<"));
}

TEST_F(PackageTest, Installed_RunsAJobOfAnotherUser) {
  const auto run = InCleanRoot(
      "dpkg -i /tmp/cadre.deb\n"
      "useradd --create-home ann\n"
      "cd /home/ann\n"
      "runuser -u ann -- cadre run --standalone --nproc-per-node 2 "
      "sh -c 'echo worker $RANK of $WORLD_SIZE by $(id -un)'\n"
      "test -f /usr/share/bash-completion/completions/cadre");
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  // As it was not removed, it is what is left.
  EXPECT_THAT(run->standard_output(), HasSubstr("left: /usr/lib/cadre/cadre-supervisor"));
  EXPECT_THAT(run->standard_output(), HasSubstr("worker 1 of 2 by ann")) << OutputOf(*run);
}

// Builds a program with CMake, and with pkg-config alone. The program's run leaves a record of its
// log directory in the user's home, which is no file of the package.
TEST_F(PackageTest, TheLibrarysPackages_BuildAProgramThatRuns) {
  const auto run = InCleanRoot(
      "dpkg -i /tmp/cadre.deb /tmp/libcadre0.deb /tmp/libcadre-dev.deb\n"
      "cmake -S /usr/share/doc/libcadre-dev/examples -B /tmp/build -DTorch_DIR=/nowhere\n"
      "cmake --build /tmp/build --target plain_cpp\n"
      "ip link set lo up || true\n"
      "HOME=/tmp cadre run --standalone --nproc-per-node 2 --log-dir /tmp/logs "
      "/tmp/build/plain_cpp\n"
      "cc /usr/share/doc/libcadre-dev/examples/plain_c/main.c -o /tmp/plain_c "
      "$(pkg-config --cflags --libs cadre)\n"
      "ldd /tmp/plain_c\n"
      "dpkg -P libcadre-dev libcadre0 cadre");
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("rank 1 of 2: y = 3.00 x + 2.00"))
      << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("libcadre.so.0 => /lib/x86_64-linux-gnu/"));
  EXPECT_THAT(run->standard_output(), Not(HasSubstr("left: "))) << OutputOf(*run);
}

// Where there is no systemd the daemons are started by hand.
TEST_F(PackageTest, TheConfigurationFileSpeaksToServerAndClients) {
  const auto run =
      InCleanRoot(std::string(kInstalledServer) +
                  "echo \"client: {server: '127.0.0.1:$port', token-file: /etc/cadre/token}\" "
                  ">> /etc/cadre/cadre.yaml\n"
                  "cadre status\n"
                  "kill $server; wait $server\n"
                  "test -d /var/lib/cadre/state\n"
                  "dpkg -P cadre");
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("NAME")) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), Not(HasSubstr("left: "))) << OutputOf(*run);
}

// An agent of root, and a user of the group.
TEST_F(PackageTest, AUsersJobIsRunByTheCluster) {
  const auto run = InCleanRoot(
      std::string(kInstalledServer) +
      "for who in agent client; do\n"
      "  echo \"$who: {server: '127.0.0.1:$port', token-file: /etc/cadre/token}\"\n"
      "done >> /etc/cadre/cadre.yaml\n"
      "cadre agent --cpus 2 > /tmp/agent.log 2>&1 &\n"
      "agent=$!\n"
      "useradd --create-home --groups cadre ann\n"
      "cd /home/ann\n"
      "cat > job.yaml <<'end'\n"
      "name: hello\n"
      "command: [sh, -c, 'echo worker $RANK of $WORLD_SIZE by $(id -un)']\n"
      "workers_per_node: 2\n"
      "end\n"
      "chown ann job.yaml\n"
      "setpriv --reuid=ann --regid=ann --init-groups env HOME=/home/ann USER=ann "
      "cadre submit job.yaml --follow\n"
      "kill $agent; wait $agent\n"
      "kill $server; wait $server\n"
      "cat /tmp/agent.log /tmp/log\n"
      "dpkg -P cadre\n"
      "userdel --remove ann\n"
      "if getent passwd cadre || getent group cadre; then echo 'left: user or group'; fi\n"
      "find /tmp -name 'cadre-*' -printf 'left: %p\\n'");
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("worker 1 of 2 by ann")) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), Not(HasSubstr("left: "))) << OutputOf(*run);
}

}  // namespace
}  // namespace cadre
