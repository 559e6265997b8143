// Mounted file systems for tests, which programs of these tests serve over libfuse: one that stops
// answering, and one that loses power. They need /dev/fuse and the right to mount. One thread uses
// an object.
#ifndef CADRE_TESTS_TESTING_FILE_SYSTEMS_H_
#define CADRE_TESTS_TESTING_FILE_SYSTEMS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cadre {

// A file system that a program of these tests serves over libfuse, mounted at an empty directory.
class FuseProcess {
 public:
  // Runs the program that the environment variable names as `PROGRAM <arguments> PLACE`; it writes
  // a byte to descriptor 3 once it serves. Fails with FAILED_PRECONDITION if this machine does not
  // permit it.
  static absl::StatusOr<std::unique_ptr<FuseProcess>> Mount(const char* variable,
                                                            std::vector<std::string> arguments,
                                                            const std::string& place);
  // Kills the program, so that pending operations fail with an error, and unmounts the file system.
  ~FuseProcess();
  FuseProcess(const FuseProcess&) = delete;
  FuseProcess& operator=(const FuseProcess&) = delete;

  pid_t pid() const { return pid_; }

 private:
  FuseProcess(pid_t pid, std::string place) : pid_(pid), place_(std::move(place)) {}

  const pid_t pid_;
  const std::string place_;
};

// A mounted file system that can stop answering, like one whose server or network is gone.
class HangingFileSystem {
 public:
  // Mounts the file system at an empty directory of its own. CADRE_STANDING_FS names the program.
  // Fails with FAILED_PRECONDITION if this machine does not permit it.
  static absl::StatusOr<std::unique_ptr<HangingFileSystem>> Mount();
  // Pending operations fail with an error.
  ~HangingFileSystem();
  HangingFileSystem(const HangingFileSystem&) = delete;
  HangingFileSystem& operator=(const HangingFileSystem&) = delete;

  const std::string& path() const { return place_; }
  // The directory behind the mount: the same files, which can always be accessed.
  const std::string& behind() const { return directory_; }

  // After this returns, every access to path() blocks until Resume().
  void Hang();
  void Resume();

 private:
  HangingFileSystem() = default;

  std::string root_;
  std::string directory_;
  std::string place_;
  std::unique_ptr<FuseProcess> process_;
};

// A mounted in-memory file system that can simulate a power failure: data that was not synced is
// then lost, as on a disk. It is strict: an fsync of a file keeps its content, and an fsync of its
// directory keeps its name.
class ForgetfulFileSystem {
 public:
  // With kNothing a sync keeps nothing, so that all is lost; a test uses it to show that it could
  // fail.
  enum class SyncKeeps { kAll, kNothing };
  // Mounts the file system at an empty directory of its own. CADRE_FORGETFUL_FS names the program.
  // Fails with FAILED_PRECONDITION if this machine does not permit it.
  static absl::StatusOr<std::unique_ptr<ForgetfulFileSystem>> Mount(
      SyncKeeps keeps = SyncKeeps::kAll);
  ~ForgetfulFileSystem();
  ForgetfulFileSystem(const ForgetfulFileSystem&) = delete;
  ForgetfulFileSystem& operator=(const ForgetfulFileSystem&) = delete;

  const std::string& path() const { return place_; }

  // No file may be open. With kAll everything that was not synced is lost; with kSome only some of
  // the writes to files are, in any order, as if the disk had begun with them.
  enum class Lost { kAll, kSome };
  absl::Status LosePower(Lost lost);

 private:
  ForgetfulFileSystem() = default;

  std::string place_;
  std::unique_ptr<FuseProcess> process_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_FILE_SYSTEMS_H_
