// Certificates end while a job runs between a server and nodes that show them to each other. The
// clock is the test's, and shared by all that it starts: nobody waits for a real end.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "tests/faults/store_job.h"
#include "tests/testing/certificates.h"
#include "tests/testing/launch.h"
#include "tests/testing/wall_clock.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr char kPreloaded[] = "tests/testing/libwall_clock.so";
constexpr absl::Duration kTimeout = absl::Seconds(60);
// MakeCertificates' are good for two days.
constexpr int64_t kThreeDays = 3 * 86400;

class ExpiredCertificatesTest : public testing::Test {
 protected:
  ExpiredCertificatesTest() {
    Set(0);
    setenv(CADRE_WALL_CLOCK_FILE, clock_.c_str(), 1);
    setenv("LD_PRELOAD", std::filesystem::absolute(kPreloaded).c_str(), 1);
  }
  ~ExpiredCertificatesTest() override {
    unsetenv(CADRE_WALL_CLOCK_FILE);
    unsetenv("LD_PRELOAD");
  }
  void Set(int64_t seconds) {
    const int fd = open(clock_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    EXPECT_EQ(pwrite(fd, &seconds, sizeof(seconds), 0), ssize_t{sizeof(seconds)});
    close(fd);
  }
  void StartServer() {
    server_ = StartCadre({"server", absl::StrCat("--port=", port_), "--token-file=" + token_,
                          "--state-dir=" + directory_ + "/state", "--tls-dir=" + certificates_});
    ASSERT_TRUE(server_->WaitForLine("serving at", kTimeout).has_value()) << OutputOf(*server_);
  }
  std::unique_ptr<Process> Status() {
    auto status = StartCadre({"status", absl::StrCat("--server=127.0.0.1:", port_),
                              "--token-file=" + token_, "--tls-dir=" + certificates_});
    EXPECT_TRUE(status->Wait(kTimeout).has_value()) << OutputOf(*status);
    return status;
  }
  // As an administrator does, one file after the other.
  void ReplaceCertificates(const std::string& fresh) {
    for (const char* name : {"ca.pem", "cert.pem", "key.pem"}) {
      std::filesystem::rename(absl::StrCat(fresh, "/", name),
                              absl::StrCat(certificates_, "/", name));
    }
  }

  const int port_ = FreePort();
  const std::string directory_ = MakeTempDir("expired");
  const std::string clock_ = directory_ + "/clock";
  const std::string token_ = directory_ + "/token";
  const std::string certificates_ = MakeCertificates();
  std::unique_ptr<Process> server_;
};

// Fault (access): Certificates expire while a job runs -> Connections go on and new ones are
// refused, which the error explains; after a server restart agents keep their workers and return
// with new certificates in the same generation
TEST_F(ExpiredCertificatesTest, WhileAJobRuns_ItGoesOnAndNewOnesBringItBack) {
  ASSERT_OK(WriteTokenFile(token_, RandomToken()));
  StartServer();
  StoreJob job(token_);
  for (int node = 0; node < 2; ++node) {
    job.StartNode(port_, "2", {"--tls-dir", certificates_, "--orphan-timeout", "300s"});
  }
  job.AwaitWorkers();
  job.ExpectAdditions();
  Set(kThreeDays);
  // Connections that are there stay; there are no new ones.
  job.ExpectAdditions();
  const auto refused = Status();
  EXPECT_NE(refused->Wait(), 0);
  EXPECT_THAT(refused->standard_error(),
              HasSubstr("certificates of one ca.pem that have not ended"));
  job.ExpectAdditions();
  // The server is lost, and cannot be reached when it is there again. From then on its nodes have a
  // lease to come back, so that what takes long is done before.
  const std::string fresh = MakeCertificates();
  server_->Kill(SIGKILL);
  server_->Wait();
  StartServer();
  for (size_t node = 0; node < job.size(); ++node) {
    job.Await(node, "that have not ended");
  }
  job.ExpectUndisturbed();
  ReplaceCertificates(fresh);
  for (size_t node = 0; node < job.size(); ++node) {
    job.Await(node, "reached the rendezvous server");
  }
  job.ExpectAdditions();
  job.ExpectUndisturbed();
  job.Finish();
  job.ExpectOneGeneration();
}

}  // namespace
}  // namespace cadre
