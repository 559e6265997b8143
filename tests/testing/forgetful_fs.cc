// An in-memory file system over libfuse that loses what was not synced: `forgetful_fs all|nothing
// PLACE`, with one thread. Each directory and file is stored twice, as it is and as it was last
// synced. With "nothing" a sync keeps nothing. Creating a directory "lose-all" or "lose-some" at
// the top is a command (file_systems.h), answered with ENODATA. The program writes a byte
// to descriptor 3 once it serves.
#define FUSE_USE_VERSION 31

#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr int kReadyFd = 3;

struct Node;
using NodePtr = std::shared_ptr<Node>;
using Entries = std::map<std::string, NodePtr>;

// A change of a file since its last sync: bytes at an offset, or another length.
struct Change {
  size_t at = 0;
  std::string bytes;
  bool resizes = false;
};

struct Node {
  explicit Node(mode_t mode) : mode(mode) {}
  bool is_directory() const { return S_ISDIR(mode); }

  mode_t mode;
  // Used for directories.
  Entries entries, kept_entries;
  // Used for files.
  std::string bytes, kept_bytes;
  std::vector<Change> changes;
};

// NOLINTBEGIN: libfuse's functions have no parameter through which to find these.
NodePtr root = std::make_shared<Node>(S_IFDIR | 0755);
bool syncs_keep = true;
std::minstd_rand coins(1);
// NOLINTEND

void Apply(const Change& change, std::string& bytes) {
  if (change.resizes) return bytes.resize(change.at);
  if (bytes.size() < change.at + change.bytes.size()) bytes.resize(change.at + change.bytes.size());
  bytes.replace(change.at, change.bytes.size(), change.bytes);
}

void Do(Node& file, Change change) {
  Apply(change, file.bytes);
  file.changes.push_back(std::move(change));
}

void Keep(Node& node) {
  if (!syncs_keep) return;
  node.kept_entries = node.entries;
  node.kept_bytes = node.bytes;
  node.changes.clear();
}

void Lose(Node& node, bool some_arrived) {
  node.entries = node.kept_entries;
  for (const Change& change : node.changes) {
    if (some_arrived && coins() % 2 == 0) Apply(change, node.kept_bytes);
  }
  node.changes.clear();
  node.bytes = node.kept_bytes;
  for (const auto& [name, child] : node.entries) Lose(*child, some_arrived);
}

NodePtr Find(const std::string& path) {
  NodePtr node = root;
  for (size_t begin = 1; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const auto found = node->entries.find(path.substr(begin, end - begin));
    if (found == node->entries.end()) return nullptr;
    node = found->second;
    begin = end + 1;
  }
  return node;
}

// Returns the directory that contains `path`, or nullptr, and the last component of `path`.
std::pair<NodePtr, std::string> Place(const std::string& path) {
  const size_t slash = path.rfind('/');
  return {Find(path.substr(0, slash)), path.substr(slash + 1)};
}

void* Init(fuse_conn_info*, fuse_config* config) {
  // The kernel caches no answers, and a file disappears with its name.
  config->entry_timeout = config->attr_timeout = config->negative_timeout = 0;
  config->hard_remove = 1;
  [[maybe_unused]] const ssize_t n = write(kReadyFd, "r", 1);
  close(kReadyFd);
  return nullptr;
}

NodePtr FileOf(const char* path, fuse_file_info* file) {
  if (file != nullptr && file->fh != 0) return *reinterpret_cast<NodePtr*>(file->fh);
  return path == nullptr ? nullptr : Find(path);
}

int GetAttributes(const char* path, struct stat* info, fuse_file_info* file) {
  const NodePtr node = FileOf(path, file);
  if (node == nullptr) return -ENOENT;
  *info = {};
  info->st_mode = node->mode;
  info->st_nlink = 1;
  info->st_size = static_cast<off_t>(node->bytes.size());
  info->st_blocks = (info->st_size + 511) / 512;
  return 0;
}

int ReadDirectory(const char* path, void* buffer, fuse_fill_dir_t fill, off_t, fuse_file_info*,
                  fuse_readdir_flags) {
  const NodePtr node = Find(path);
  if (node == nullptr) return -ENOENT;
  for (const char* name : {".", ".."}) {
    fill(buffer, name, nullptr, 0, static_cast<fuse_fill_dir_flags>(0));
  }
  for (const auto& [name, child] : node->entries) {
    fill(buffer, name.c_str(), nullptr, 0, static_cast<fuse_fill_dir_flags>(0));
  }
  return 0;
}

int Add(const char* path, mode_t mode) {
  const auto [directory, name] = Place(path);
  if (directory == nullptr) return -ENOENT;
  directory->entries[name] = std::make_shared<Node>(mode);
  return 0;
}
int MakeDirectory(const char* path, mode_t mode) {
  const std::string command = path;
  if (command == "/lose-all" || command == "/lose-some") {
    Lose(*root, command == "/lose-some");
    return -ENODATA;
  }
  return Add(path, S_IFDIR | mode);
}
int Remove(const char* path) {
  const auto [directory, name] = Place(path);
  const NodePtr node = Find(path);
  if (node == nullptr) return -ENOENT;
  if (!node->entries.empty()) return -ENOTEMPTY;
  directory->entries.erase(name);
  return 0;
}
int Rename(const char* from, const char* to, unsigned) {
  const auto [source, old_name] = Place(from);
  const auto [target, new_name] = Place(to);
  const NodePtr node = Find(from);
  if (node == nullptr || target == nullptr) return -ENOENT;
  source->entries.erase(old_name);
  target->entries[new_name] = node;
  return 0;
}
int ChangeMode(const char* path, mode_t mode, fuse_file_info* file) {
  const NodePtr node = FileOf(path, file);
  if (node == nullptr) return -ENOENT;
  node->mode = (node->mode & S_IFMT) | (mode & 07777);
  return 0;
}
int ChangeOwner(const char*, uid_t, gid_t, fuse_file_info*) { return 0; }
int SetTimes(const char*, const timespec*, fuse_file_info*) { return 0; }

int Truncate(const char* path, off_t size, fuse_file_info* file) {
  const NodePtr node = FileOf(path, file);
  if (node == nullptr) return -ENOENT;
  Do(*node, {static_cast<size_t>(size), "", true});
  return 0;
}
int Open(const char* path, fuse_file_info* file) {
  const NodePtr node = Find(path);
  if (node == nullptr) return -ENOENT;
  if ((file->flags & O_TRUNC) != 0) Do(*node, {0, "", true});
  file->fh = reinterpret_cast<uint64_t>(new NodePtr(node));
  return 0;
}
int Create(const char* path, mode_t mode, fuse_file_info* file) {
  if (Find(path) == nullptr) {
    const int error = Add(path, S_IFREG | (mode & 07777));
    if (error != 0) return error;
  }
  return Open(path, file);
}
int Read(const char*, char* buffer, size_t size, off_t at, fuse_file_info* file) {
  const std::string& bytes = FileOf(nullptr, file)->bytes;
  const size_t from = std::min(static_cast<size_t>(at), bytes.size());
  const size_t count = std::min(size, bytes.size() - from);
  memcpy(buffer, bytes.data() + from, count);
  return static_cast<int>(count);
}
int Write(const char*, const char* buffer, size_t size, off_t at, fuse_file_info* file) {
  Do(*FileOf(nullptr, file), {static_cast<size_t>(at), std::string(buffer, size), false});
  return static_cast<int>(size);
}
int Sync(const char* path, int, fuse_file_info* file) {
  const NodePtr node = FileOf(path, file);
  if (node == nullptr) return -ENOENT;
  Keep(*node);
  return 0;
}
int Release(const char*, fuse_file_info* file) {
  delete reinterpret_cast<NodePtr*>(file->fh);
  return 0;
}
int Room(const char*, struct statvfs* room) {
  *room = {};
  room->f_bsize = room->f_frsize = 4096;
  room->f_blocks = room->f_bfree = room->f_bavail = 1 << 20;
  room->f_namemax = 255;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string keeps = argc == 3 ? argv[1] : "";
  if (keeps != "all" && keeps != "nothing") {
    fprintf(stderr, "usage: forgetful_fs all|nothing PLACE\n");
    return 64;
  }
  syncs_keep = keeps == "all";
  fuse_operations operations = {};
  operations.init = Init;
  operations.getattr = GetAttributes;
  operations.readdir = ReadDirectory;
  operations.mkdir = MakeDirectory;
  operations.rmdir = Remove;
  operations.unlink = Remove;
  operations.rename = Rename;
  operations.chmod = ChangeMode;
  operations.chown = ChangeOwner;
  operations.utimens = SetTimes;
  operations.truncate = Truncate;
  operations.create = Create;
  operations.open = Open;
  operations.read = Read;
  operations.write = Write;
  operations.fsync = Sync;
  operations.fsyncdir = Sync;
  operations.release = Release;
  operations.statfs = Room;
  std::string foreground = "-f", one_thread = "-s", place = argv[2];
  char* arguments[] = {argv[0], foreground.data(), one_thread.data(), place.data(), nullptr};
  return fuse_main(4, arguments, &operations, nullptr);
}
