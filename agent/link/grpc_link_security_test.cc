// How a link handles keys, tokens and certificates, including ones replaced while it runs.
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <string>

#include "agent/link/grpc_link_rig.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "rendezvous/host/messages_for_test.h"
#include "tests/testing/certificates.h"
#include "tests/testing/file_systems.h"

namespace cadre::agent {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

rpc::TransportSecurity ByToken() {
  rpc::TransportSecurity security;
  security.by_token = true;
  return security;
}

rpc::TransportSecurity ByCertificates(const std::string& directory) {
  rpc::TransportSecurity security;
  security.tls_dir = directory;
  return security;
}

TEST(GrpcLinkSecurity, AServerWithAnotherKeyThanTheTokenNamesEndsTheLink) {
  Host strangers(0, log::OpenedLog{}, RandomToken(), ByToken());
  Peer peer(GrpcLinkOptions{{strangers.endpoint()}, RandomToken(), ByToken()});
  peer.Start({host::JoinForTest("node0", 1, 1)});
  EXPECT_THAT(peer.AwaitDown(), StatusIs(absl::StatusCode::kUnauthenticated,
                                         HasSubstr("does not have the key that the token names")));
  EXPECT_TRUE(strangers.core.AllStatuses()->empty());
}

TEST(GrpcLinkSecurity, ATokenThatIsReplacedInItsFileIsTheNextConnections) {
  const std::string file = ::testing::TempDir() + "/replaced.token";
  const std::string before = RandomToken(), after = RandomToken();
  ASSERT_OK(WriteTokenFile(file, before));
  auto host = std::make_unique<Host>(0, log::OpenedLog{}, before, ByToken());
  const int port = host->port();
  Peer peer(GrpcLinkOptions{{host->endpoint()}, before, ByToken(), false, file});
  peer.Start({host::JoinForTest("node0", 1, 1)});
  ASSERT_TRUE(peer.AwaitMessage(v1::ServerMessage::kAssign).has_assign());
  ASSERT_OK(WriteTokenFile(file, after));
  host.reset();
  host = std::make_unique<Host>(port, log::OpenedLog{}, after, ByToken());
  EXPECT_TRUE(peer.AwaitUps(2));
}

TEST(GrpcLinkSecurity, CertificatesThatAreBeingReplacedEndNoLinkThatWasIn) {
  const rpc::TransportSecurity mutual = ByCertificates(MakeCertificates());
  auto host = std::make_unique<Host>(0, log::OpenedLog{}, kToken, mutual);
  const int port = host->port();
  Peer peer(GrpcLinkOptions{{host->endpoint()}, kToken, mutual});
  peer.Start({host::JoinForTest("node0", 1, 1)});
  ASSERT_TRUE(peer.AwaitMessage(v1::ServerMessage::kAssign).has_assign());
  const std::string after = MakeCertificates();
  const auto replace = [&](const std::string& name) {
    fs::rename(after + "/" + name, mutual.tls_dir + "/" + name);
  };
  replace("ca.pem");
  replace("cert.pem");
  host.reset();
  EXPECT_THAT(peer.AwaitDown(2),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("do not belong together")));
  replace("key.pem");
  host = std::make_unique<Host>(port, log::OpenedLog{}, kToken, mutual);
  EXPECT_TRUE(peer.AwaitUps(2));
}

// Certificates are renewed while jobs run.
//
// Fault (access): A node's certificate is read while it is being rewritten -> If the node has been
// admitted before, it reads the file again with growing pauses
TEST(GrpcLinkSecurity, ACertificateThatIsHalfWrittenIsReadAgainOnceThisNodeWasTakenIn) {
  const rpc::TransportSecurity mutual = ByCertificates(MakeCertificates());
  const fs::path certificate = mutual.tls_dir + "/cert.pem", key = mutual.tls_dir + "/key.pem";
  auto host = std::make_unique<Host>(0, log::OpenedLog{}, kToken, mutual);
  const int port = host->port();
  Peer peer(GrpcLinkOptions{{host->endpoint()}, kToken, mutual});
  peer.Start({host::JoinForTest("node0", 1, 1)});
  ASSERT_TRUE(peer.AwaitMessage(v1::ServerMessage::kAssign).has_assign());
  host.reset();
  const fs::path whole = mutual.tls_dir + "/whole";
  fs::create_directory(whole);
  for (const fs::path& file : {certificate, key}) fs::copy(file, whole / file.filename());
  const auto expect_away = [&peer] {
    for (size_t i = peer.downs() + 1, end = i + 2; i < end; ++i) {
      EXPECT_THAT(peer.AwaitDown(i), StatusIs(absl::StatusCode::kUnavailable));
    }
  };
  // One file is still empty, and the other half written.
  fs::resize_file(certificate, 0);
  fs::resize_file(key, fs::file_size(key) / 2);
  expect_away();
  fs::copy(whole / "cert.pem", certificate, fs::copy_options::overwrite_existing);
  fs::resize_file(certificate, fs::file_size(certificate) / 2);
  expect_away();
  for (const fs::path& file : {certificate, key}) {
    fs::copy(whole / file.filename(), file, fs::copy_options::overwrite_existing);
  }
  host = std::make_unique<Host>(port, log::OpenedLog{}, kToken, mutual);
  EXPECT_TRUE(peer.AwaitUps(2));
}

// Fault (access): TLS files are on a file system that does not answer -> The server counts as
// unreachable until they can be read, and the launcher's end does not wait for them
TEST(GrpcLinkSecurity, FilesThatCannotBeReadHoldUpNoEnd) {
  const auto disk = HangingFileSystem::Mount();
  if (absl::IsFailedPrecondition(disk.status())) GTEST_SKIP() << disk.status().message();
  ASSERT_OK(disk);
  const std::string made = MakeCertificates();
  for (const char* name : {"/ca.pem", "/cert.pem", "/key.pem"}) {
    fs::copy(made + name, (*disk)->behind() + name);
  }
  const std::string token = RandomToken();
  ASSERT_OK(WriteTokenFile((*disk)->behind() + "/token", token));
  auto host = std::make_unique<Host>(0, log::OpenedLog{}, token, ByCertificates(made));
  Peer peer(GrpcLinkOptions{{host->endpoint()},
                            token,
                            ByCertificates((*disk)->path()),
                            false,
                            (*disk)->path() + "/token"});
  peer.Start({host::JoinForTest("node0", 1, 1)});
  ASSERT_TRUE(peer.AwaitMessage(v1::ServerMessage::kAssign).has_assign());
  (*disk)->Hang();
  host.reset();
  EXPECT_THAT(peer.AwaitDown(2),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("does not answer")));
  auto stopped = std::async(std::launch::async, [&peer] { peer.link().Stop(); });
  EXPECT_EQ(stopped.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  (*disk)->Resume();
}

}  // namespace
}  // namespace cadre::agent
