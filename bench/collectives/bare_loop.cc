#include "bench/collectives/bare_loop.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace cadre {
namespace {

constexpr int kMaxRanks = 8;
// Looks before others get the core, where there are too few of them.
constexpr int kSpins = 2000;

struct Line {
  alignas(64) std::atomic<unsigned> arrived;
};

struct Arena {
  Line lines[kMaxRanks];
  double results[64];
};

void* MapShared(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    perror("mmap");
    exit(1);
  }
  return memory;
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

class Barrier {
 public:
  Barrier(Arena* arena, int rank, int ranks)
      : arena_(arena),
        rank_(rank),
        ranks_(ranks),
        has_cores_(sysconf(_SC_NPROCESSORS_ONLN) >= ranks) {}

  void Wait() {
    ++phase_;
    arena_->lines[rank_].arrived.store(phase_, std::memory_order_release);
    for (int peer = 0; peer < ranks_; ++peer) {
      int spins = 0;
      while (static_cast<int>(arena_->lines[peer].arrived.load(std::memory_order_acquire) -
                              phase_) < 0) {
        Pause();
        if (!has_cores_ || ++spins > kSpins) sched_yield();
      }
    }
  }

 private:
  Arena* const arena_;
  const int rank_;
  const int ranks_;
  const bool has_cores_;
  unsigned phase_ = 0;
};

#if defined(__x86_64__)
__attribute__((target_clones("arch=x86-64-v3", "default")))
#endif
void SumTwo(float* a, float* b, size_t begin, size_t end) {
#pragma GCC ivdep
  for (size_t i = begin; i < end; ++i) {
    const float sum = a[i] + b[i];
    a[i] = sum;
    b[i] = sum;
  }
}

#if defined(__x86_64__)
__attribute__((target_clones("arch=x86-64-v3", "default")))
#endif
void SumFour(float* a, float* b, float* c, float* d, size_t begin, size_t end) {
#pragma GCC ivdep
  for (size_t i = begin; i < end; ++i) {
    const float sum = a[i] + b[i] + c[i] + d[i];
    a[i] = sum;
    b[i] = sum;
    c[i] = sum;
    d[i] = sum;
  }
}

void RunRank(Arena* arena, const std::vector<float*>& buffers, int rank,
             const std::vector<Measurement>& schedule) {
  const int ranks = static_cast<int>(buffers.size());
  Barrier barrier(arena, rank, ranks);
  for (size_t i = 0; i < schedule.size(); ++i) {
    const size_t count = schedule[i].bytes / sizeof(float);
    const size_t begin = count * rank / ranks, end = count * (rank + 1) / ranks;
    const auto reduce = [&] {
      barrier.Wait();
      if (ranks == 2) {
        SumTwo(buffers[0], buffers[1], begin, end);
      } else {
        SumFour(buffers[0], buffers[1], buffers[2], buffers[3], begin, end);
      }
      barrier.Wait();
    };
    const double median = MedianMicroseconds(schedule[i], reduce, [&] { barrier.Wait(); });
    if (rank == 0) arena->results[i] = median;
  }
}

}  // namespace

std::vector<double> RunBareLoop(int ranks, const std::vector<Measurement>& schedule) {
  auto* const arena = static_cast<Arena*>(MapShared(sizeof(Arena)));
  const size_t bytes = schedule.back().bytes;
  std::vector<float*> buffers;
  for (int rank = 0; rank < ranks; ++rank) {
    buffers.push_back(static_cast<float*>(MapShared(bytes)));
  }
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    // Every process has the pages of all in its own tables before it begins.
    for (float* buffer : buffers) madvise(buffer, bytes, MADV_POPULATE_WRITE);
    RunRank(arena, buffers, rank, schedule);
    _exit(0);
  }
  for (int rank = 0; rank < ranks; ++rank) wait(nullptr);
  std::vector<double> results(arena->results, arena->results + schedule.size());
  for (float* buffer : buffers) munmap(buffer, bytes);
  munmap(arena, sizeof(Arena));
  return results;
}

}  // namespace cadre
