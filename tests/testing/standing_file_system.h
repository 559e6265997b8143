// A mounted file system that can stand still, as one whose server or network is gone. Needs
// /dev/fuse and the right to mount. One thread.
#ifndef CADRE_TESTS_TESTING_STANDING_FILE_SYSTEM_H_
#define CADRE_TESTS_TESTING_STANDING_FILE_SYSTEM_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tests/testing/fuse_process.h"

namespace cadre {

class StandingFileSystem {
 public:
  // Mounted at an empty folder of its own. The program is CADRE_STANDING_FS's. FAILED_PRECONDITION:
  // this machine does not let us.
  static absl::StatusOr<std::unique_ptr<StandingFileSystem>> Mount();
  // Whoever waits is let go with an error.
  ~StandingFileSystem();
  StandingFileSystem(const StandingFileSystem&) = delete;
  StandingFileSystem& operator=(const StandingFileSystem&) = delete;

  const std::string& path() const { return place_; }
  // The same files where nothing stands still.
  const std::string& behind() const { return directory_; }

  // From when it returns until GoOn whoever touches path() waits.
  void StandStill();
  void GoOn();

 private:
  StandingFileSystem() = default;

  std::string root_;
  std::string directory_;
  std::string place_;
  std::unique_ptr<FuseProcess> process_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_STANDING_FILE_SYSTEM_H_
