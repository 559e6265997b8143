#include "cadre/torch/archive_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <exception>

#include "worker_runtime/torch/guarded.h"

namespace cadre {
namespace {

Status Failed(const std::string& path) { return ErrnoToStatus(errno, "cannot write " + path); }

Status WriteAll(int fd, const std::string& path, const char* bytes, size_t left) {
  while (left > 0) {
    const ssize_t written = write(fd, bytes, left);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failed(path);
    bytes += written;
    left -= static_cast<size_t>(written);
  }
  return OkStatus();
}

}  // namespace

Status SaveArchive(torch::serialize::OutputArchive& archive, const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return Failed(path);
  Status status;
  try {
    // The archive must see every write succeed: libtorch ends the process if one is short.
    archive.save_to([&](const void* bytes, size_t size) {
      status.Update(WriteAll(fd, path, static_cast<const char*>(bytes), status.ok() ? size : 0));
      return size;
    });
  } catch (const std::exception& error) {
    status.Update(InternalError("cannot write " + path + ": " + nn::OneLine(error)));
  }
  if (close(fd) != 0) status.Update(Failed(path));
  return status;
}

Status LoadArchive(const std::string& path, const torch::Device& device,
                   const std::function<void(torch::serialize::InputArchive&)>& read) {
  if (access(path.c_str(), R_OK) != 0) return ErrnoToStatus(errno, "cannot read " + path);
  torch::serialize::InputArchive archive;
  try {
    archive.load_from(path, device);
  } catch (const std::exception& error) {
    return InvalidArgumentError(
        path + " is not an archive of libtorch's: " + nn::OneLine(error) +
        "; convert what Python's torch.save() wrote, as docs/checkpoints.md "
        "describes");
  }
  try {
    read(archive);
  } catch (const std::exception& error) {
    return InvalidArgumentError(
        path + " does not hold what this program reads from it: " + nn::OneLine(error));
  }
  return OkStatus();
}

}  // namespace cadre
