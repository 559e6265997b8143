#include "agent/supervisor/warm/hook_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"

namespace cadre::supervisor {
namespace {

constexpr char kHook[] =
#include "agent/supervisor/warm/sitecustomize.py.inc"
    ;
constexpr char kTemplate[] =
#include "agent/supervisor/warm/template.py.inc"
    ;
constexpr char kExamine[] =
#include "agent/supervisor/warm/examine.py.inc"
    ;
constexpr char kForked[] =
#include "agent/supervisor/warm/forked.py.inc"
    ;
constexpr char kOwnRanks[] =
#include "agent/supervisor/warm/own_ranks.py.inc"
    ;
constexpr char kExits[] =
#include "agent/supervisor/warm/exits.py.inc"
    ;
constexpr char kFlightRecorder[] =
#include "agent/supervisor/warm/flight_recorder.py.inc"
    ;

absl::Status Failed(const std::string& path) {
  return absl::UnavailableError(absl::StrCat("cannot make ", path, ": ", strerror(errno)));
}

absl::Status Write(const std::string& path, absl::string_view rest) {
  // An interpreter that looks now finds all of it or nothing.
  const std::string part = path + ".part";
  ScopedFd file(open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.ok()) return Failed(part);
  while (!rest.empty()) {
    const ssize_t n = write(file.get(), rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Failed(part);
    rest.remove_prefix(static_cast<size_t>(n));
  }
  return rename(part.c_str(), path.c_str()) == 0 ? absl::OkStatus() : Failed(path);
}

}  // namespace

absl::Status WriteHook(const std::string& directory) {
  const std::string hook = directory + "/sitecustomize.py";
  if (access(hook.c_str(), F_OK) == 0) return absl::OkStatus();
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return Failed(directory);
  RETURN_IF_ERROR(Write(directory + "/template.py", {kTemplate, sizeof(kTemplate) - 1}));
  RETURN_IF_ERROR(Write(directory + "/examine.py", {kExamine, sizeof(kExamine) - 1}));
  RETURN_IF_ERROR(Write(directory + "/forked.py", {kForked, sizeof(kForked) - 1}));
  RETURN_IF_ERROR(Write(directory + "/own_ranks.py", {kOwnRanks, sizeof(kOwnRanks) - 1}));
  RETURN_IF_ERROR(Write(directory + "/exits.py", {kExits, sizeof(kExits) - 1}));
  RETURN_IF_ERROR(
      Write(directory + "/flight_recorder.py", {kFlightRecorder, sizeof(kFlightRecorder) - 1}));
  return Write(hook, {kHook, sizeof(kHook) - 1});
}

}  // namespace cadre::supervisor
