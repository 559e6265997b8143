#include "rpc/tls/pem_files.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "base/status_matchers.h"
#include "base/tokens/server_key.h"

namespace cadre::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PemFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/tls_XXXXXX";
    ASSERT_NE(mkdtemp(&name[0]), nullptr);
    directory_ = name;
  }

  void Write(const std::string& name, mode_t mode) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << "-----BEGIN SOMETHING-----\n";
    chmod(path.c_str(), mode);
  }

  std::string directory_;
};

TEST_F(PemFilesTest, AbsentFileIsNamed) {
  Write("ca.pem", 0644);
  EXPECT_THAT(ReadPemFiles(directory_, true),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("/cert.pem: No such file"), HasSubstr("must hold ca.pem"))));
  EXPECT_OK(ReadPemFiles(directory_, false));
}

TEST_F(PemFilesTest, KeyOpenToOthersIsRefused) {
  Write("ca.pem", 0644);
  Write("cert.pem", 0644);
  Write("key.pem", 0644);
  EXPECT_THAT(ReadPemFiles(directory_, true),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("chmod 600")));
}

TEST_F(PemFilesTest, FileThatIsNoPemIsRefused) {
  std::ofstream(directory_ + "/ca.pem") << "hello\n";
  EXPECT_THAT(ReadPemFiles(directory_, true),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not in PEM format")));
}

TEST_F(PemFilesTest, ACertificateIsItsKeys) {
  const ServerIdentity one = MakeServerIdentity("one"), other = MakeServerIdentity("other");
  Write("ca.pem", 0644);
  std::ofstream(directory_ + "/cert.pem") << one.certificate_pem;
  std::ofstream(directory_ + "/key.pem") << other.key_pem;
  chmod((directory_ + "/key.pem").c_str(), 0600);
  EXPECT_THAT(ReadPemFiles(directory_, true),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("do not belong together")));
  std::ofstream(directory_ + "/key.pem") << one.key_pem;
  EXPECT_OK(ReadPemFiles(directory_, true));
}

}  // namespace
}  // namespace cadre::rpc
