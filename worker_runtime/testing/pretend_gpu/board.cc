#include "worker_runtime/testing/pretend_gpu/board.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

namespace cadre::pretend_gpu {
namespace {

constexpr int kSpins = 64;
constexpr std::chrono::microseconds kPause(50);
constexpr std::chrono::milliseconds kLookInterval(20);
constexpr size_t kGpuNameBytes = 256;

bool NoticesLoss() {
  const char* const loss = getenv("CADRE_PRETEND_NCCL_PEER_LOSS");
  return loss == nullptr || strcmp(loss, "hang") != 0;
}

// The lock belongs to the open file description, so that ranks in one process have one each.
struct flock LockOf(int rank) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

// A new file is all zero, and so is this.
struct alignas(64) Board::Header {
  std::atomic<int32_t> size;
};

struct alignas(64) Board::Member {
  std::atomic<int32_t> taken;
  std::atomic<int32_t> arrived;
  char gpu[kGpuNameBytes];
  Post stream_post;
  Post host_post;
};

Board::Board(std::string id, int rank, int size, const std::atomic<bool>* stop)
    : name_("/" + std::move(id)),
      rank_(rank),
      size_(size),
      stop_(stop),
      notices_loss_(NoticesLoss()) {}

Board::~Board() {
  Close();
  if (mapped_ != nullptr) munmap(mapped_, FileBytes());
}

size_t Board::FileBytes() const {
  const auto size = static_cast<size_t>(size_);
  return sizeof(Header) + size * sizeof(Member) + size * size * sizeof(Channel);
}

Board::Member& Board::member(int rank) const {
  char* const begin = static_cast<char*>(mapped_) + sizeof(Header);
  return reinterpret_cast<Member*>(begin)[rank];
}

Post& Board::stream_post(int rank) const { return member(rank).stream_post; }
Post& Board::host_post(int rank) const { return member(rank).host_post; }

Channel& Board::channel(int from, int to) const {
  char* const begin =
      static_cast<char*>(mapped_) + sizeof(Header) + static_cast<size_t>(size_) * sizeof(Member);
  return reinterpret_cast<Channel*>(begin)[from * size_ + to];
}

std::string Board::Open() {
  if (size_ > kMaxRanks) {
    return "at most " + std::to_string(kMaxRanks) + " ranks are simulated, not " +
           std::to_string(size_);
  }
  file_ = shm_open(name_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  const auto why = [](const char* what) {
    return std::string(what) + " in /dev/shm: " + strerror(errno);
  };
  if (file_ < 0) return why("shm_open");
  // The file is never made smaller: another rank may have been given a larger number of ranks.
  const off_t bytes = std::max(lseek(file_, 0, SEEK_END), static_cast<off_t>(FileBytes()));
  if (ftruncate(file_, bytes) != 0) return why("ftruncate");
  mapped_ = mmap(nullptr, FileBytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (mapped_ == MAP_FAILED) {
    mapped_ = nullptr;
    return why("mmap");
  }
  int32_t others = 0;
  auto& header = *static_cast<Header*>(mapped_);
  if (!header.size.compare_exchange_strong(others, size_) && others != size_) {
    return "this rank says that there are " + std::to_string(size_) + " ranks, another one " +
           std::to_string(others);
  }
  int32_t taken = 0;
  if (!member(rank_).taken.compare_exchange_strong(taken, 1)) {
    return "two ranks say that they are rank " + std::to_string(rank_) +
           ", or one id is used twice";
  }
  struct flock lock = LockOf(rank_);
  return fcntl(file_, F_OFD_SETLK, &lock) == 0 ? "" : why("F_OFD_SETLK");
}

Failure Board::Arrive(const std::string& gpu, std::vector<std::string>* gpus) {
  strncpy(member(rank_).gpu, gpu.c_str(), kGpuNameBytes - 1);
  member(rank_).arrived = 1;
  for (int rank = 0; rank < size_; ++rank) {
    const Failure failure = Wait([&] { return member(rank).arrived == 1; }, {});
    if (!failure.ok()) return failure;
    gpus->emplace_back(member(rank).gpu);
  }
  // All ranks have the file open, so its name can be removed.
  shm_unlink(name_.c_str());
  return {};
}

void Board::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (file_ < 0) return;
  shm_unlink(name_.c_str());
  close(file_);
  file_ = -1;
}

bool Board::IsGone(int rank) const {
  if (rank == rank_) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (file_ < 0) return false;
  struct flock held = LockOf(rank);
  return fcntl(file_, F_OFD_GETLK, &held) == 0 && held.l_type == F_UNLCK;
}

Failure Board::Wait(const std::function<bool()>& done, const std::vector<int>& needed) const {
  auto next_look = std::chrono::steady_clock::now() + kLookInterval;
  for (int turn = 0; !done(); ++turn) {
    if (*stop_) return {true, ""};
    if (turn < kSpins) {
      sched_yield();
      continue;
    }
    std::this_thread::sleep_for(kPause);
    if (!notices_loss_ || std::chrono::steady_clock::now() < next_look) continue;
    next_look = std::chrono::steady_clock::now() + kLookInterval;
    for (const int rank : needed) {
      // The rank may have done its part before it was lost.
      if (IsGone(rank) && !done()) return {false, "rank " + std::to_string(rank) + " is gone"};
    }
  }
  return {};
}

Post& Meeting::post(int rank) const {
  return place_ == Place::kStream ? board_.stream_post(rank) : board_.host_post(rank);
}

std::vector<int> Meeting::Behind(std::atomic<uint64_t> Post::*counter, uint64_t round) const {
  std::vector<int> behind;
  for (int rank = 0; rank < board_.size(); ++rank) {
    if (post(rank).*counter < round) behind.push_back(rank);
  }
  return behind;
}

char* Meeting::Begin(Failure* failure) {
  // All ranks must have read what was posted before; a rank that has left the communicator has.
  for (const int rank : Behind(&Post::consumed, round_)) {
    *failure = board_.Wait([&] { return post(rank).consumed >= round_; }, {rank});
    if (!failure->ok()) return nullptr;
  }
  return post(board_.rank()).data;
}

Failure Meeting::Exchange() {
  ++round_;
  post(board_.rank()).posted = round_;
  for (const int rank : Behind(&Post::posted, round_)) {
    const Failure failure = board_.Wait([&] { return post(rank).posted >= round_; }, {rank});
    if (!failure.ok()) return failure;
  }
  return {};
}

void Meeting::End() { post(board_.rank()).consumed = round_; }

}  // namespace cadre::pretend_gpu
