#include "rpc/credentials.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "base/status_matchers.h"

namespace cadre::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TlsFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/tls_XXXXXX";
    ASSERT_NE(mkdtemp(&name[0]), nullptr);
    security_.tls_dir = name;
  }

  void Write(const std::string& name, mode_t mode) {
    const std::string path = security_.tls_dir + "/" + name;
    std::ofstream(path) << "-----BEGIN SOMETHING-----\n";
    chmod(path.c_str(), mode);
  }

  TransportSecurity security_;
};

TEST_F(TlsFiles, NoDirectoryMeansNoEncryption) {
  EXPECT_OK(MakeServerCredentials(TransportSecurity()));
  EXPECT_OK(MakeChannelCredentials(TransportSecurity()));
}

TEST_F(TlsFiles, AbsentFileIsNamed) {
  Write("ca.pem", 0644);
  EXPECT_THAT(MakeServerCredentials(security_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("/cert.pem: No such file"), HasSubstr("must hold ca.pem"))));
  EXPECT_THAT(MakeChannelCredentials(security_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("/cert.pem")));
}

TEST_F(TlsFiles, KeyOpenToOthersIsRefused) {
  Write("ca.pem", 0644);
  Write("cert.pem", 0644);
  Write("key.pem", 0644);
  EXPECT_THAT(MakeServerCredentials(security_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("chmod 600")));
}

TEST_F(TlsFiles, FileThatIsNoPemIsRefused) {
  std::ofstream(security_.tls_dir + "/ca.pem") << "hello\n";
  EXPECT_THAT(MakeServerCredentials(security_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not in PEM format")));
}

}  // namespace
}  // namespace cadre::rpc
