// The wheel's files in a folder of their own, as pip lays them out in site-packages: for programs
// of an environment that tests do not write to.
#ifndef CADRE_TESTS_TESTING_UNPACKED_WHEEL_H_
#define CADRE_TESTS_TESTING_UNPACKED_WHEEL_H_

#include <filesystem>
#include <string>

#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {

// For PYTHONPATH. Depend on //tools/library:wheel.
inline std::string UnpackedWheel() {
  const std::string folder = MakeTempDir("wheel");
  ProcessOptions options;
  options.argv = {
      "/usr/bin/python3", "-m", "zipfile", "-e", "tools/library/cadre_train.whl", folder};
  const auto process = RunToEnd(options);
  EXPECT_TRUE(process.ok()) << process.status();
  if (process.ok()) {
    EXPECT_EQ((*process)->Wait(), 0) << (*process)->standard_error();
  }
  return std::filesystem::canonical(folder);
}

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_UNPACKED_WHEEL_H_
