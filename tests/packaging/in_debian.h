// Tests of what we hand out, in a Debian 12 that has a compiler, CMake and Python and nothing else:
// the roots that tools/debian_root makes. They need root, and are skipped without.
#ifndef CADRE_TESTS_PACKAGING_IN_DEBIAN_H_
#define CADRE_TESTS_PACKAGING_IN_DEBIAN_H_

#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {

class InDebianTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can enter another root";
    if (root_.empty()) GTEST_SKIP() << "CADRE_DEBIAN_ROOT is not set: see tools/debian_root";
  }

  // Runs a script of bash there, to its end; `paths` of this machine lie there too, read-only.
  static std::unique_ptr<Process> InDebian(const std::string& root, const std::string& script,
                                           const std::vector<std::string>& paths,
                                           absl::Duration timeout) {
    ProcessOptions options;
    options.argv = {"tests/packaging/in_debian.sh", MakeTempDir("root"), root, script};
    options.argv.insert(options.argv.end(), paths.begin(), paths.end());
    auto process = RunToEnd(options, timeout);
    EXPECT_OK(process);
    return process.ok() ? *std::move(process) : nullptr;
  }

  const std::string root_ = Variable("CADRE_DEBIAN_ROOT");
  // The environment with PyTorch of PyPI (tools/python_env); may be empty.
  const std::string python_ = Variable("CADRE_PYTHON_ENV");

 private:
  static std::string Variable(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? "" : value;
  }
};

}  // namespace cadre

#endif  // CADRE_TESTS_PACKAGING_IN_DEBIAN_H_
