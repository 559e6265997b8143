// Tests of programs under the Python of tools/python_env, with the PyTorch of PyPI. They are
// skipped where CADRE_PYTHON_ENV does not name its folder.
#ifndef CADRE_TESTS_COMPATIBILITY_PYPI_PYTHON_H_
#define CADRE_TESTS_COMPATIBILITY_PYPI_PYTHON_H_

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace cadre {

inline constexpr char kNoPypiPython[] =
    "CADRE_PYTHON_ENV does not name the folder that tools/python_env makes";

class PypiPythonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const environment = std::getenv("CADRE_PYTHON_ENV");
    if (environment == nullptr || *environment == '\0') {
      GTEST_SKIP() << kNoPypiPython;
    }
    folder_ = environment;
    python_ = InEnvironment("python");
    if (access(python_.c_str(), X_OK) != 0) GTEST_SKIP() << "there is no " << python_;
  }

  // The path of a program of that environment: "torchrun".
  std::string InEnvironment(const std::string& program) const {
    return absl::StrCat(folder_, "/bin/", program);
  }

  std::string folder_;
  std::string python_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_COMPATIBILITY_PYPI_PYTHON_H_
