#include "tests/testing/certificates.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {

std::string MakeCertificates(const std::string& address) {
  const std::string dir = MakeTempDir("tls");
  for (const std::string& command :
       {std::string("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "
                    "ca.key -out ca.pem -days 2 -subj /CN=ca"),
        std::string("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "
                    "key.pem -out cert.csr -subj /CN=node"),
        absl::StrCat("echo subjectAltName=IP:", address, " > names"),
        std::string("openssl x509 -req -in cert.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out "
                    "cert.pem -days 2 -extfile names"),
        std::string("chmod 600 key.pem")}) {
    ProcessOptions options;
    options.argv = {"/bin/sh", "-c", command};
    options.working_dir = dir;
    const auto process = RunToEnd(options);
    EXPECT_TRUE(process.ok() && (*process)->Wait() == 0)
        << (process.ok() ? (*process)->standard_error() : process.status().ToString());
  }
  return dir;
}

}  // namespace cadre
