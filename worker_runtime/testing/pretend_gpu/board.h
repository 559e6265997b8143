// The shared memory of a communicator's ranks: a file in /dev/shm that all of them map. Each rank
// holds a lock on its part of the file, which the kernel releases when the rank ends for any
// reason. Thread safe, except that a Meeting belongs to one thread at a time.
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

// Why an operation was not done; it succeeded if both are unset.
struct Failure {
  bool stopped = false;
  std::string peer_lost;  // describes the lost rank
  bool ok() const { return !stopped && peer_lost.empty(); }
};

// What one rank publishes to all others, round after round.
struct alignas(64) Post {
  std::atomic<uint64_t> posted;
  std::atomic<uint64_t> consumed;
  char data[kPostBytes];
};

// What one rank sends to one other rank, parcel after parcel.
struct alignas(64) Channel {
  std::atomic<uint64_t> posted;
  std::atomic<uint64_t> consumed;
  // Element count and type as the sender and the receiver of the transfer gave them.
  uint64_t count;
  int32_t type;
  uint64_t expected_count;
  int32_t expected_type;
  char data[kParcelBytes];
};

class Board {
 public:
  // Every wait ends when `stop` is set.
  Board(std::string id, int rank, int size, const std::atomic<bool>* stop);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // Opens the file. Returns "" on success, else the error, which is the caller's mistake.
  std::string Open();
  // Publishes which GPU this rank uses and waits for the other ranks' GPUs.
  Failure Arrive(const std::string& gpu, std::vector<std::string>* gpus);
  // Ends this rank's participation; the other ranks see it as lost. Its operations must have
  // stopped.
  void Close();

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Waits until `done` returns true, or until a rank in `needed` is lost.
  Failure Wait(const std::function<bool()>& done, const std::vector<int>& needed) const;

  // The posts that streams use, and those that the host uses.
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
  // Whether the loss of a rank is detected; if not, a wait for it lasts until `stop_` is set.
  const bool notices_loss_;
  mutable std::mutex mutex_;
  int file_ = -1;
  void* mapped_ = nullptr;
};

// Rounds in which every rank publishes data and then reads what all have published.
class Meeting {
 public:
  enum class Place { kStream, kHost };
  Meeting(const Board& board, Place place) : board_(board), place_(place) {}

  // Returns the buffer, of kPostBytes, for what this rank publishes; null with `failure` set.
  char* Begin(Failure* failure);
  // Publishes it and waits for the other ranks' data.
  Failure Exchange();
  const char* Of(int rank) const { return post(rank).data; }
  // Ends the round: this rank no longer reads the other ranks' data.
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
