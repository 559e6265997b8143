// Selection by magnitude. The bits of |value| order like the values, so a radix select finds the
// K-th largest in four passes of eight bits, and a threshold is such a bound from the start. What
// passes the bound is then written in the order of its index: count per block, add up the counts,
// write. Nothing depends on which block runs first, so the result is the same every time.
#include <cuda_runtime.h>

#include "worker_runtime/cuda/launch.h"

namespace cadre {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 16;
constexpr uint64_t kPerBlock = uint64_t{kThreads} * kPerThread;
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr unsigned kMaxHistogramBlocks = 1024;
static_assert(kThreads == kDigits, "a thread per digit");

// In the scratch memory.
struct State {
  // Elements above are selected; of those equal to it the first `equal_wanted`.
  uint32_t bound;
  uint64_t equal_wanted;
  unsigned long long histogram[kDigits];
};

struct BlockCount {
  uint64_t above;
  uint64_t equal;
};

__device__ inline uint32_t Magnitude(float value) { return __float_as_uint(value) & 0x7fffffffu; }

__global__ void BeginTopK(State* state, uint64_t k) {
  if (threadIdx.x == 0) {
    state->bound = 0;
    state->equal_wanted = k;
  }
  state->histogram[threadIdx.x] = 0;
}

__global__ void BeginThreshold(State* state, uint32_t bound) {
  state->bound = bound;
  state->equal_wanted = ~uint64_t{0};
}

// Counts the digit at `shift` of those whose higher digits are the bound's.
__global__ void HistogramKernel(const float* values, uint64_t count, int shift, State* state) {
  __shared__ unsigned int counts[kDigits];
  counts[threadIdx.x] = 0;
  __syncthreads();
  const uint32_t bound = state->bound;
  const int higher = shift + kDigitBits;
  const uint64_t step = uint64_t{gridDim.x} * kThreads;
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const uint32_t bits = Magnitude(values[i]);
    const bool same = higher >= 32 || (bits >> higher) == (bound >> higher);
    if (same) atomicAdd(&counts[(bits >> shift) & (kDigits - 1)], 1u);
  }
  __syncthreads();
  if (counts[threadIdx.x] > 0) {
    atomicAdd(&state->histogram[threadIdx.x], static_cast<unsigned long long>(counts[threadIdx.x]));
  }
}

// Which digit the K-th largest has there, and how many of that digit are still wanted.
__global__ void ChooseDigit(int shift, State* state) {
  if (threadIdx.x == 0) {
    uint64_t wanted = state->equal_wanted;
    int digit = kDigits - 1;
    while (digit > 0 && state->histogram[digit] < wanted) {
      wanted -= state->histogram[digit];
      --digit;
    }
    state->equal_wanted = wanted;
    state->bound |= static_cast<uint32_t>(digit) << shift;
  }
  __syncthreads();
  state->histogram[threadIdx.x] = 0;
}

// Sums over a block; every thread gets those of the threads before it, and the total.
__device__ inline BlockCount BeforeInBlock(BlockCount mine, BlockCount* total) {
  __shared__ BlockCount sums[2][kThreads];
  int now = 0;
  sums[now][threadIdx.x] = mine;
  __syncthreads();
  for (int distance = 1; distance < kThreads; distance *= 2) {
    BlockCount sum = sums[now][threadIdx.x];
    if (threadIdx.x >= static_cast<unsigned>(distance)) {
      sum.above += sums[now][threadIdx.x - distance].above;
      sum.equal += sums[now][threadIdx.x - distance].equal;
    }
    sums[1 - now][threadIdx.x] = sum;
    now = 1 - now;
    __syncthreads();
  }
  *total = sums[now][kThreads - 1];
  const BlockCount through = sums[now][threadIdx.x];
  __syncthreads();
  return {through.above - mine.above, through.equal - mine.equal};
}

// The elements of a thread are neighbours, so that threads are in the order of the indices.
__device__ inline BlockCount CountOfThread(const float* values, uint64_t begin, uint64_t count,
                                           uint32_t bound) {
  BlockCount mine = {0, 0};
  for (int i = 0; i < kPerThread; ++i) {
    if (begin + i >= count) break;
    const uint32_t bits = Magnitude(values[begin + i]);
    mine.above += bits > bound;
    mine.equal += bits == bound;
  }
  return mine;
}

__global__ void CountKernel(const float* values, uint64_t count, const State* state,
                            BlockCount* counts) {
  const uint64_t begin = uint64_t{blockIdx.x} * kPerBlock + uint64_t{threadIdx.x} * kPerThread;
  BlockCount total;
  BeforeInBlock(CountOfThread(values, begin, count, state->bound), &total);
  if (threadIdx.x == 0) counts[blockIdx.x] = total;
}

// One block: counts become what lies before each block; *found is what is selected in all.
__global__ void AddUpKernel(BlockCount* counts, uint64_t blocks, const State* state,
                            uint64_t* found) {
  BlockCount before = {0, 0};
  for (uint64_t base = 0; base < blocks; base += kThreads) {
    const uint64_t index = base + threadIdx.x;
    const BlockCount mine = index < blocks ? counts[index] : BlockCount{0, 0};
    BlockCount total;
    const BlockCount here = BeforeInBlock(mine, &total);
    if (index < blocks) counts[index] = {before.above + here.above, before.equal + here.equal};
    before.above += total.above;
    before.equal += total.equal;
  }
  if (threadIdx.x == 0) {
    const uint64_t wanted = state->equal_wanted;
    *found = before.above + (before.equal < wanted ? before.equal : wanted);
  }
}

__global__ void WriteKernel(const float* values, uint64_t count, const State* state,
                            const BlockCount* counts, uint64_t capacity, uint32_t* indices,
                            float* chosen) {
  const uint32_t bound = state->bound;
  const uint64_t wanted = state->equal_wanted;
  const uint64_t begin = uint64_t{blockIdx.x} * kPerBlock + uint64_t{threadIdx.x} * kPerThread;
  BlockCount total;
  BlockCount before = BeforeInBlock(CountOfThread(values, begin, count, bound), &total);
  before.above += counts[blockIdx.x].above;
  before.equal += counts[blockIdx.x].equal;
  for (int i = 0; i < kPerThread; ++i) {
    if (begin + i >= count) break;
    const float value = values[begin + i];
    const uint32_t bits = Magnitude(value);
    const bool takes = bits > bound || (bits == bound && before.equal < wanted);
    if (takes) {
      const uint64_t place = before.above + (before.equal < wanted ? before.equal : wanted);
      if (place < capacity) {
        indices[place] = static_cast<uint32_t>(begin + i);
        chosen[place] = value;
      }
    }
    before.above += bits > bound;
    before.equal += bits == bound;
  }
}

uint64_t BlocksFor(uint64_t count) { return (count + kPerBlock - 1) / kPerBlock; }

State* StateIn(void* scratch) { return static_cast<State*>(scratch); }
BlockCount* CountsIn(void* scratch) {
  return reinterpret_cast<BlockCount*>(static_cast<char*>(scratch) + sizeof(State));
}

int WriteSelected(const float* values, size_t count, size_t capacity, uint32_t* indices,
                  float* chosen, uint64_t* found, void* scratch, cudaStream_t stream) {
  const uint64_t blocks = BlocksFor(count);
  const unsigned grid = static_cast<unsigned>(blocks);
  State* const state = StateIn(scratch);
  BlockCount* const counts = CountsIn(scratch);
  if (grid > 0) CountKernel<<<grid, kThreads, 0, stream>>>(values, count, state, counts);
  AddUpKernel<<<1, kThreads, 0, stream>>>(counts, blocks, state, found);
  if (grid > 0) {
    WriteKernel<<<grid, kThreads, 0, stream>>>(values, count, state, counts, capacity, indices,
                                               chosen);
  }
  return cudaGetLastError();
}

}  // namespace

size_t SelectionScratch(size_t count) {
  return sizeof(State) + BlocksFor(count) * sizeof(BlockCount);
}

int LaunchSelectTopK(const float* values, size_t count, size_t k, uint32_t* indices, float* chosen,
                     uint64_t* found, void* scratch, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  State* const state = StateIn(scratch);
  BeginTopK<<<1, kDigits, 0, on>>>(state, k);
  const uint64_t blocks = (count + kThreads - 1) / kThreads;
  const unsigned grid =
      blocks < kMaxHistogramBlocks ? static_cast<unsigned>(blocks) : kMaxHistogramBlocks;
  for (int shift = 32 - kDigitBits; grid > 0 && shift >= 0; shift -= kDigitBits) {
    HistogramKernel<<<grid, kThreads, 0, on>>>(values, count, shift, state);
    ChooseDigit<<<1, kDigits, 0, on>>>(shift, state);
  }
  return WriteSelected(values, count, k, indices, chosen, found, scratch, on);
}

int LaunchSelectThreshold(const float* values, size_t count, float threshold, size_t capacity,
                          uint32_t* indices, float* chosen, uint64_t* found, void* scratch,
                          void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  union {
    float value;
    uint32_t bits;
  } bound = {threshold};
  BeginThreshold<<<1, 1, 0, on>>>(StateIn(scratch), bound.bits & 0x7fffffffu);
  return WriteSelected(values, count, capacity, indices, chosen, found, scratch, on);
}

}  // namespace cuda
}  // namespace cadre
