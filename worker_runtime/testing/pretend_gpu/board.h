// Where the ranks of a communicator meet: a file in /dev/shm that all of them map. A rank holds a
// lock on its part of the file, which the kernel takes away when the rank ends, however it ends.
// Thread safe, except that a Meeting belongs to one thread at a time.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_BOARD_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_BOARD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace cadre::pretend_gpu {

constexpr int kMaxRanks = 64;
constexpr size_t kPostBytes = size_t{1} << 20;
constexpr size_t kParcelBytes = size_t{256} << 10;

// Why something is not done; both empty: it is.
struct Failure {
  bool stopped = false;
  std::string peer_lost;  // which, in words
  bool ok() const { return !stopped && peer_lost.empty(); }
};

// What a rank shows to all, round after round.
struct alignas(64) Post {
  std::atomic<uint64_t> posted;
  std::atomic<uint64_t> consumed;
  char data[kPostBytes];
};

// What a rank hands to another one, parcel after parcel.
struct alignas(64) Channel {
  std::atomic<uint64_t> posted;
  std::atomic<uint64_t> consumed;
  // What the sender of the transfer gives and its receiver expects: how many, of what.
  uint64_t count;
  int32_t type;
  uint64_t expected_count;
  int32_t expected_type;
  char data[kParcelBytes];
};

class Board {
 public:
  // `stop` ends every wait.
  Board(std::string id, int rank, int size, const std::atomic<bool>* stop);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // Opens the file. Empty: done. Else what is wrong, which is the caller's mistake.
  std::string Open();
  // Says to the others on which GPU this rank is, and waits for theirs.
  Failure Arrive(const std::string& gpu, std::vector<std::string>* gpus);
  // This rank takes part no more; the others see it. What runs must have stopped.
  void Close();

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Waits for `done`; a rank of `needed` that is gone ends it too.
  Failure Wait(const std::function<bool()>& done, const std::vector<int>& needed) const;

  // By streams, and by the host.
  Post& stream_post(int rank) const;
  Post& host_post(int rank) const;
  Channel& channel(int from, int to) const;

 private:
  struct Member;
  struct Header;

  size_t FileBytes() const;
  Member& member(int rank) const;
  bool IsGone(int rank) const;

  const std::string name_;
  const int rank_;
  const int size_;
  const std::atomic<bool>* const stop_;
  // Whether a rank that is gone is noticed; else what waits for it waits until it is stopped.
  const bool notices_loss_;
  mutable std::mutex mutex_;
  int file_ = -1;
  void* mapped_ = nullptr;
};

// Rounds in which every rank posts something and then reads what all have posted.
class Meeting {
 public:
  enum class Place { kStream, kHost };
  Meeting(const Board& board, Place place) : board_(board), place_(place) {}

  // Where this rank may write what it posts, at most kPostBytes; null: see `failure`.
  char* Begin(Failure* failure);
  // Shows it to the others and waits for theirs.
  Failure Exchange();
  const char* Of(int rank) const { return post(rank).data; }
  // What the others posted is not looked at any more.
  void End();

 private:
  Post& post(int rank) const;
  std::vector<int> Behind(std::atomic<uint64_t> Post::*counter, uint64_t round) const;

  const Board& board_;
  const Place place_;
  uint64_t round_ = 0;
};

}  // namespace cadre::pretend_gpu

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_BOARD_H_
