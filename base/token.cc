#include "base/token.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

constexpr size_t kRandomBytes = 32;
// f_type of the file systems that lie on this machine's own disks or in its memory: ext2 to ext4,
// XFS, Btrfs, tmpfs, overlayfs and ZFS.
constexpr unsigned kOwnFileSystems[] = {0xef53,     0x58465342, 0x9123683e,
                                        0x01021994, 0x794c7630, 0x2fc12fc1};

absl::Status SystemError(absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", what, " ", path));
}

absl::Status CheckTokenFile(const struct stat& info, const std::string& path) {
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("token file ", path, " is no regular file"));
  }
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("token file ", path, " belongs to user ", info.st_uid,
                     ", not to you: make a copy of your own with mode 600"));
  }
  // Root may let a group read its file: that is how a cluster controls who may submit jobs.
  const mode_t closed = info.st_uid == 0 ? 037 : 077;
  if ((info.st_mode & closed) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("token file ", path, " is open to other users: chmod 600 ", path));
  }
  return absl::OkStatus();
}

absl::Status CheckTokenSize(size_t size, const std::string& path) {
  if (size >= kTokenBytesMin && size <= kTokenBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("token file ", path, " must hold ", kTokenBytesMin,
                                                 " to ", kTokenBytesMax, " bytes"));
}

// gRPC carries the token in a header, which allows only these characters.
absl::Status CheckTokenCharacters(absl::string_view token, const std::string& path) {
  for (const char c : token) {
    if (absl::ascii_isprint(c)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "token file ", path, " must hold one line of printable ASCII; it holds a byte 0x",
        absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2),
        "; 'cadre token new' writes a good one"));
  }
  return absl::OkStatus();
}

// Reads up to `limit` bytes.
absl::StatusOr<std::string> ReadUpTo(int fd, size_t limit, const std::string& path) {
  std::string content(limit, '\0');
  size_t size = 0;
  while (size < limit) {
    const ssize_t got = read(fd, &content[size], limit - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError("read token file", path);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  content.resize(size);
  return content;
}

absl::Status WriteAll(int fd, absl::string_view data, const std::string& path) {
  while (!data.empty()) {
    const ssize_t put = write(fd, data.data(), data.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return SystemError("write", path);
    data.remove_prefix(static_cast<size_t>(put));
  }
  return absl::OkStatus();
}

// Whether write errors show only at fsync. NFS and similar file systems accept data first and
// report later that there is no room. Local file systems report that at once, and waiting for their
// disk would take most of a launcher's start time.
bool SaysLaterWhatFails(int file) {
  struct statfs info;
  if (fstatfs(file, &info) != 0) return true;
  return std::find(std::begin(kOwnFileSystems), std::end(kOwnFileSystems),
                   static_cast<unsigned>(info.f_type)) == std::end(kOwnFileSystems);
}

// Creates the file, which must not exist, with mode 0600 and the token.
absl::Status WriteNew(const std::string& path, absl::string_view token) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return SystemError("create", path);
  absl::Status written = WriteAll(file, absl::StrCat(token, "\n"), path);
  if (written.ok() && SaysLaterWhatFails(file) && fsync(file) != 0) {
    written = SystemError("write", path);
  }
  if (close(file) != 0 && errno != EINTR && written.ok()) written = SystemError("write", path);
  if (!written.ok()) unlink(path.c_str());
  return written;
}

// Writes the token to a new file beside `path`, and returns its name.
absl::StatusOr<std::string> WriteTemporary(const std::string& path, absl::string_view token) {
  const std::string temporary = absl::StrCat(path, ".", RandomToken().substr(0, 16));
  RETURN_IF_ERROR(WriteNew(temporary, token));
  return temporary;
}

}  // namespace

std::string RandomToken() {
  char bytes[kRandomBytes];
  size_t filled = 0;
  while (filled < sizeof(bytes)) {
    const ssize_t got = getrandom(bytes + filled, sizeof(bytes) - filled, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      // A token that can be guessed is worse than none.
      fprintf(stderr, "cadre: the kernel gives no random bytes: %s\n", strerror(errno));
      abort();
    }
    filled += static_cast<size_t>(got);
  }
  return absl::BytesToHexString(absl::string_view(bytes, sizeof(bytes)));
}

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  // O_NONBLOCK: opening a FIFO of that name must not block.
  const ScopedFd file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file.ok()) {
    if (errno == ELOOP) {
      return absl::InvalidArgumentError(
          absl::StrCat("token file ", path, " is a symbolic link: name the file itself"));
    }
    return SystemError("open token file", path);
  }
  struct stat info;
  if (fstat(file.get(), &info) != 0) return SystemError("look at token file", path);
  RETURN_IF_ERROR(CheckTokenFile(info, path));
  ASSIGN_OR_RETURN(std::string token, ReadUpTo(file.get(), kTokenBytesMax + 2, path));
  absl::StripTrailingAsciiWhitespace(&token);
  RETURN_IF_ERROR(CheckTokenSize(token.size(), path));
  RETURN_IF_ERROR(CheckTokenCharacters(token, path));
  return token;
}

absl::StatusOr<std::string> ReadTokenFrom(int fd) {
  constexpr char kName[] = "-";
  std::string token;
  // Reads byte by byte, because what follows belongs to another reader.
  while (token.size() <= kTokenBytesMax) {
    ASSIGN_OR_RETURN(const std::string byte, ReadUpTo(fd, 1, kName));
    if (byte.empty() || byte == "\n") break;
    token += byte;
  }
  RETURN_IF_ERROR(CheckTokenSize(token.size(), kName));
  RETURN_IF_ERROR(CheckTokenCharacters(token, kName));
  return token;
}

absl::Status WriteTokenFile(const std::string& path, absl::string_view token) {
  RETURN_IF_ERROR(CheckTokenSize(token.size(), path));
  ASSIGN_OR_RETURN(const std::string temporary, WriteTemporary(path, token));
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    const absl::Status failed = SystemError("replace", path);
    unlink(temporary.c_str());
    return failed;
  }
  return absl::OkStatus();
}

absl::Status CreateTokenFile(const std::string& path, absl::string_view token) {
  RETURN_IF_ERROR(CheckTokenSize(token.size(), path));
  return WriteNew(path, token);
}

absl::StatusOr<std::string> SharedToken(const std::string& path) {
  absl::StatusOr<std::string> present = ReadTokenFile(path);
  if (present.ok() || !absl::IsNotFound(present.status())) return present;
  ASSIGN_OR_RETURN(const std::string temporary, WriteTemporary(path, RandomToken()));
  // Unlike rename, link fails if another process was first, so that all read the same token.
  const bool linked = link(temporary.c_str(), path.c_str()) == 0 || errno == EEXIST;
  const absl::Status failed = linked ? absl::OkStatus() : SystemError("create", path);
  unlink(temporary.c_str());
  RETURN_IF_ERROR(failed);
  return ReadTokenFile(path);
}

bool EqualConstantTime(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = difference | static_cast<unsigned char>(a[i] ^ b[i]);
  }
  return difference == 0;
}

}  // namespace cadre
