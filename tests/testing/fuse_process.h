// A file system of the tests' own that a program of ours serves over libfuse, mounted at an empty
// folder. Needs /dev/fuse and the right to mount. One thread.
#ifndef CADRE_TESTS_TESTING_FUSE_PROCESS_H_
#define CADRE_TESTS_TESTING_FUSE_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace cadre {

class FuseProcess {
 public:
  // Runs the program that the variable names as `PROGRAM <arguments> PLACE`; it writes a byte to
  // descriptor 3 once it answers. FAILED_PRECONDITION: this machine does not let us.
  static absl::StatusOr<std::unique_ptr<FuseProcess>> Mount(const char* variable,
                                                            std::vector<std::string> arguments,
                                                            const std::string& place);
  // Whoever waits is let go with an error.
  ~FuseProcess();
  FuseProcess(const FuseProcess&) = delete;
  FuseProcess& operator=(const FuseProcess&) = delete;

  pid_t pid() const { return pid_; }

 private:
  FuseProcess(pid_t pid, std::string place) : pid_(pid), place_(std::move(place)) {}

  const pid_t pid_;
  const std::string place_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_FUSE_PROCESS_H_
