// Tests of programs under the Python of tools/python_env, with the PyTorch of PyPI. They are
// skipped where CADRE_PYTHON_ENV does not name its folder.
#ifndef CADRE_TESTS_TESTING_PYPI_PYTHON_H_
#define CADRE_TESTS_TESTING_PYPI_PYTHON_H_

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace cadre {

inline constexpr char kNoPypiPython[] =
    "CADRE_PYTHON_ENV does not name the folder that tools/python_env makes";

// The path of a program of that environment, "torchrun"; empty: there is none.
inline std::string PypiProgram(const std::string& name) {
  const char* const environment = std::getenv("CADRE_PYTHON_ENV");
  if (environment == nullptr || *environment == '\0') return "";
  const std::string path = absl::StrCat(environment, "/bin/", name);
  return access(path.c_str(), X_OK) == 0 ? path : "";
}

class PypiPythonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (python_.empty()) GTEST_SKIP() << kNoPypiPython;
  }

  static std::string InEnvironment(const std::string& program) { return PypiProgram(program); }

  const std::string python_ = PypiProgram("python");
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_PYPI_PYTHON_H_
