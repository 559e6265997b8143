// The archive of `tools/package --gpu-check`, unpacked.
#ifndef CADRE_TESTS_PACKAGING_UNPACKED_GPU_CHECK_H_
#define CADRE_TESTS_PACKAGING_UNPACKED_GPU_CHECK_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {

// The folder that has gpu_check in it. Depend on //tools/gpu:archive.
inline std::string UnpackedGpuCheck() {
  const std::string folder = MakeTempDir("gpu_check");
  ProcessOptions options;
  options.argv = {"tar",
                  "--extract",
                  "--gzip",
                  "--strip-components=1",
                  "--file=tools/gpu/gpu_check.tar.gz",
                  absl::StrCat("--directory=", folder)};
  const auto process = RunToEnd(options);
  EXPECT_TRUE(process.ok()) << process.status();
  if (process.ok()) {
    EXPECT_EQ((*process)->Wait(), 0) << (*process)->standard_error();
  }
  return folder;
}

}  // namespace cadre

#endif  // CADRE_TESTS_PACKAGING_UNPACKED_GPU_CHECK_H_
