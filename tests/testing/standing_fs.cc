// A file system over libfuse that shows a directory at another place; while the program is stopped,
// every access there blocks. `standing_fs DIRECTORY PLACE`, with one thread; it writes a byte to
// descriptor 3 once it serves.
#define FUSE_USE_VERSION 31

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace {

constexpr int kReadyFd = 3;

// NOLINTNEXTLINE: libfuse's functions have no parameter through which to find it.
std::string directory;

std::string Behind(const char* path) { return directory + path; }

int Result(int64_t value) { return value < 0 ? -errno : static_cast<int>(value); }

void* Init(fuse_conn_info*, fuse_config* config) {
  // The kernel caches no answers.
  config->entry_timeout = config->attr_timeout = config->negative_timeout = 0;
  [[maybe_unused]] const ssize_t n = write(kReadyFd, "r", 1);
  close(kReadyFd);
  return nullptr;
}

int GetAttributes(const char* path, struct stat* info, fuse_file_info*) {
  return Result(lstat(Behind(path).c_str(), info));
}

int ReadDirectory(const char* path, void* buffer, fuse_fill_dir_t fill, off_t, fuse_file_info*,
                  fuse_readdir_flags) {
  DIR* opened = opendir(Behind(path).c_str());
  if (opened == nullptr) return -errno;
  while (const dirent* entry = readdir(opened)) {
    fill(buffer, entry->d_name, nullptr, 0, static_cast<fuse_fill_dir_flags>(0));
  }
  closedir(opened);
  return 0;
}

int ReadLink(const char* path, char* buffer, size_t size) {
  const ssize_t n = readlink(Behind(path).c_str(), buffer, size - 1);
  if (n < 0) return -errno;
  buffer[n] = '\0';
  return 0;
}

int MakeDirectory(const char* path, mode_t mode) {
  return Result(mkdir(Behind(path).c_str(), mode));
}
int RemoveDirectory(const char* path) { return Result(rmdir(Behind(path).c_str())); }
int Unlink(const char* path) { return Result(unlink(Behind(path).c_str())); }
int MakeLink(const char* target, const char* path) {
  return Result(symlink(target, Behind(path).c_str()));
}
int Rename(const char* from, const char* to, unsigned) {
  return Result(rename(Behind(from).c_str(), Behind(to).c_str()));
}
int ChangeMode(const char* path, mode_t mode, fuse_file_info*) {
  return Result(chmod(Behind(path).c_str(), mode));
}
int Truncate(const char* path, off_t size, fuse_file_info*) {
  return Result(truncate(Behind(path).c_str(), size));
}

int OpenWith(const char* path, int flags, mode_t mode, fuse_file_info* file) {
  // The kernel gives the offset at which appended data goes.
  const int fd = open(Behind(path).c_str(), flags & ~O_APPEND, mode);
  if (fd < 0) return -errno;
  file->fh = static_cast<uint64_t>(fd);
  return 0;
}
int Create(const char* path, mode_t mode, fuse_file_info* file) {
  return OpenWith(path, file->flags | O_CREAT, mode, file);
}
int Open(const char* path, fuse_file_info* file) { return OpenWith(path, file->flags, 0, file); }
int Read(const char*, char* buffer, size_t size, off_t at, fuse_file_info* file) {
  return Result(pread(static_cast<int>(file->fh), buffer, size, at));
}
int Write(const char*, const char* buffer, size_t size, off_t at, fuse_file_info* file) {
  return Result(pwrite(static_cast<int>(file->fh), buffer, size, at));
}
// Flush is implemented so that closing a file blocks too.
int Flush(const char*, fuse_file_info*) { return 0; }
int Release(const char*, fuse_file_info* file) { return Result(close(static_cast<int>(file->fh))); }

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: standing_fs DIRECTORY PLACE\n");
    return 64;
  }
  directory = argv[1];
  fuse_operations operations = {};
  operations.init = Init;
  operations.getattr = GetAttributes;
  operations.readdir = ReadDirectory;
  operations.readlink = ReadLink;
  operations.mkdir = MakeDirectory;
  operations.rmdir = RemoveDirectory;
  operations.unlink = Unlink;
  operations.symlink = MakeLink;
  operations.rename = Rename;
  operations.chmod = ChangeMode;
  operations.truncate = Truncate;
  operations.create = Create;
  operations.open = Open;
  operations.read = Read;
  operations.write = Write;
  operations.flush = Flush;
  operations.release = Release;
  std::string foreground = "-f", one_thread = "-s", place = argv[2];
  char* arguments[] = {argv[0], foreground.data(), one_thread.data(), place.data(), nullptr};
  return fuse_main(4, arguments, &operations, nullptr);
}
