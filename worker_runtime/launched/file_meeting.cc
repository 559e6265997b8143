#include "worker_runtime/launched/file_meeting.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "base/user_directory.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/sockets/endpoint.h"

namespace cadre::launched {
namespace {

class FileMeeting : public MeetingPlace {
 public:
  FileMeeting(std::string path, std::string address, bool one_node)
      : path_(std::move(path)), address_(std::move(address)), one_node_(one_node) {}

  Result<Door> Open() override {
    ASSIGN_OR_RETURN(ScopedFd listener, sockets::Listen(address_));
    return Door{std::move(listener), RandomToken()};
  }
  Status Announce(const Door& door, const std::string& endpoint) override {
    return WriteTokenFile(path_, absl::StrCat(endpoint, " ", door.key));
  }
  void Close() override { unlink(path_.c_str()); }

  Result<store::StoreAddress> Find() override {
    const absl::StatusOr<std::string> line = ReadTokenFile(path_);
    if (!line.ok()) {
      const Status status = line.status();
      // A file system that does not answer just now.
      return status.code() == StatusCode::kUnavailable ? NotFoundError(status.message()) : status;
    }
    const std::pair<std::string, std::string> words =
        absl::StrSplit(*line, absl::MaxSplits(' ', 1));
    return store::StoreAddress{words.first, words.second};
  }

  // The key is this launch's alone: whoever does not know it has the port of an earlier one.
  absl::Duration RefusalPatience() const override { return absl::InfiniteDuration(); }
  std::string Advice() const override {
    return one_node_ ? ""
                     : "; where home directories are not shared, put Cadre between: mpirun ... "
                       "cadre run -- PROGRAM";
  }

 private:
  const std::string path_;
  const std::string address_;
  const bool one_node_;
};

}  // namespace

Result<std::unique_ptr<MeetingPlace>> MeetThroughFile(const environment::ThroughFile& file,
                                                      bool one_node) {
  const absl::StatusOr<std::string> directory = one_node ? RuntimeDirectory() : HomeDirectory();
  if (directory.ok()) {
    return std::unique_ptr<MeetingPlace>(std::make_unique<FileMeeting>(
        absl::StrCat(*directory, "/", file.name), file.address, one_node));
  }
  return FailedPreconditionError(absl::StrCat(
      "mpirun's processes find each other through a directory of yours, but ",
      directory.status().message(), "; or put Cadre between: mpirun ... cadre run -- PROGRAM"));
}

}  // namespace cadre::launched
