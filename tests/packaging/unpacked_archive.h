// An archive that is handed out, unpacked.
#ifndef CADRE_TESTS_PACKAGING_UNPACKED_ARCHIVE_H_
#define CADRE_TESTS_PACKAGING_UNPACKED_ARCHIVE_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {

// What is in the one folder that the .tar.gz file has. The test needs the file in its data.
inline std::string UnpackedArchive(const std::string& file) {
  const std::string folder = MakeTempDir("unpacked");
  ProcessOptions options;
  options.argv = {"tar",
                  "--extract",
                  "--gzip",
                  "--strip-components=1",
                  absl::StrCat("--file=", file),
                  absl::StrCat("--directory=", folder)};
  const auto process = RunToEnd(options);
  EXPECT_TRUE(process.ok()) << process.status();
  if (process.ok()) {
    EXPECT_EQ((*process)->Wait(), 0) << (*process)->standard_error();
  }
  return folder;
}

}  // namespace cadre

#endif  // CADRE_TESTS_PACKAGING_UNPACKED_ARCHIVE_H_
