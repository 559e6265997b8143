// A mounted file system in memory that loses its power: what was not synced is gone then, as on a
// disk. Strict: a file's content is kept by an fsync of the file, its name by one of its directory.
// Needs /dev/fuse and the right to mount. One thread.
#ifndef CADRE_TESTS_TESTING_FORGETFUL_FILE_SYSTEM_H_
#define CADRE_TESTS_TESTING_FORGETFUL_FILE_SYSTEM_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/testing/fuse_process.h"

namespace cadre {

class ForgetfulFileSystem {
 public:
  // kNothing: a sync keeps nothing, so that all is gone; by that a test shows that it could fail.
  enum class SyncKeeps { kAll, kNothing };
  // Mounted at an empty folder of its own. The program is CADRE_FORGETFUL_FS's.
  // FAILED_PRECONDITION: this machine does not let us.
  static absl::StatusOr<std::unique_ptr<ForgetfulFileSystem>> Mount(
      SyncKeeps keeps = SyncKeeps::kAll);
  ~ForgetfulFileSystem();
  ForgetfulFileSystem(const ForgetfulFileSystem&) = delete;
  ForgetfulFileSystem& operator=(const ForgetfulFileSystem&) = delete;

  const std::string& path() const { return place_; }

  // Nobody may have a file open. All that was not synced is lost; or of the writes to files only
  // some, in any order, as where the disk had begun with them.
  enum class Lost { kAll, kSome };
  absl::Status LosePower(Lost lost);

 private:
  ForgetfulFileSystem() = default;

  std::string place_;
  std::unique_ptr<FuseProcess> process_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_FORGETFUL_FILE_SYSTEM_H_
