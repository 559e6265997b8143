#include "bench/collectives/bare_loop.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/clock.h"

namespace cadre {
namespace {

// Looks before others get the core, where there are too few of them.
constexpr int kSpins = 2000;
// Looks between two at the clock.
constexpr int kLooksPerClock = 1 << 16;

bool HasCores(int ranks) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) >= ranks;
}

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

}  // namespace

class BareLoop::Barrier {
 public:
  Barrier(ArrivalLine* lines, int rank, int ranks, bool has_cores, unsigned phase)
      : lines_(lines), rank_(rank), ranks_(ranks), has_cores_(has_cores), phase_(phase) {}

  void Wait() {
    ++phase_;
    lines_[rank_].arrived.store(phase_, std::memory_order_release);
    for (int peer = 0; peer < ranks_; ++peer) {
      int looks = 0;
      while (static_cast<int>(lines_[peer].arrived.load(std::memory_order_acquire) - phase_) < 0) {
        Pause();
        ++looks;
        if (!has_cores_ || looks > kSpins) sched_yield();
        if (looks == kLooksPerClock) {
          CheckTimeout(peer);
          looks = kSpins;
        }
      }
    }
    deadline_ = MonoTime::Never();
  }
  unsigned phase() const { return phase_; }

 private:
  void CheckTimeout(int peer) {
    if (deadline_ == MonoTime::Never()) deadline_ = MonoNow() + kBarrierTimeout;
    if (MonoNow() < deadline_) return;
    fprintf(stderr, "rank %d did not come to the bare loop's barrier\n", peer);
    _exit(1);
  }

  ArrivalLine* const lines_;
  const int rank_;
  const int ranks_;
  const bool has_cores_;
  unsigned phase_;
  // Of the barrier, from when it takes long.
  MonoTime deadline_ = MonoTime::Never();
};

BareLoop::BareLoop(int ranks, size_t bytes)
    : ranks_(ranks),
      bytes_(bytes),
      has_cores_(HasCores(ranks)),
      lines_(static_cast<ArrivalLine*>(MapShared(ranks * sizeof(ArrivalLine)))) {
  for (int rank = 0; rank < ranks; ++rank) {
    buffers_.push_back(static_cast<float*>(MapShared(bytes)));
  }
}

BareLoop::~BareLoop() {
  for (float* buffer : buffers_) munmap(buffer, bytes_);
  munmap(lines_, ranks_ * sizeof(ArrivalLine));
}

void BareLoop::Enter(int rank) {
  rank_ = rank;
  // Every process has the pages of all in its own tables before it begins.
  for (float* buffer : buffers_) madvise(buffer, bytes_, MADV_POPULATE_WRITE);
}

void BareLoop::Reduce(size_t count, int times) {
  const std::vector<float*>& buffers = buffers_;
  const size_t begin = count * rank_ / ranks_, end = count * (rank_ + 1) / ranks_;
  Barrier barrier(lines_, rank_, ranks_, has_cores_, phase_);
  for (int i = 0; i < times; ++i) {
    barrier.Wait();
    if (ranks_ == 2) {
      SumTwo(buffers[0], buffers[1], begin, end);
    } else {
      SumFour(buffers[0], buffers[1], buffers[2], buffers[3], begin, end);
    }
    barrier.Wait();
  }
  phase_ = barrier.phase();
}

}  // namespace cadre
