// Selection by magnitude. The bits of |value| order like the values, so a radix select finds the
// K-th largest in four passes of eight bits, and a threshold is such a bound from the start. What
// passes the bound is then written in the order of its index: count per block, add up the counts,
// write. Nothing depends on which block runs first, so the result is the same every time.
#include <cuda_runtime.h>

#include "worker_runtime/cuda/launch.h"
#include "worker_runtime/cuda/vector.h"

namespace cadre {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kWholeWarp = 0xffffffffu;
// A warp goes through its elements in turns; in each its lanes have four neighbours each.
constexpr int kTurns = 4;
constexpr int kFour = 4;
constexpr uint64_t kPerTurn = uint64_t{kWarp} * kFour;
constexpr uint64_t kPerWarp = kPerTurn * kTurns;
constexpr uint64_t kPerBlock = kPerWarp * kWarps;
constexpr int kAddUpThreads = 1024;
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

__device__ inline BlockCount operator+(const BlockCount& a, const BlockCount& b) {
  return {a.above + b.above, a.equal + b.equal};
}

__device__ inline uint32_t Magnitude(float value) { return __float_as_uint(value) & 0x7fffffffu; }

// Elements beside each other: four, or at the end of all `valid` of them, and zeros.
struct Four {
  Vector<float, kFour> values;
  int valid;
};

__device__ inline Four Load(const float* values, uint64_t begin, uint64_t count, bool is_aligned) {
  Four four;
  const uint64_t left = begin < count ? count - begin : 0;
  four.valid = left < kFour ? static_cast<int>(left) : kFour;
  if (is_aligned && four.valid == kFour) {
    four.values = *reinterpret_cast<const Vector<float, kFour>*>(values + begin);
    return four;
  }
#pragma unroll
  for (int i = 0; i < kFour; ++i) four.values.element[i] = i < four.valid ? values[begin + i] : 0;
  return four;
}

// How many of them are above the bound, and in the upper half of the word how many are equal to it:
// a block has fewer than 65,536 elements.
__device__ inline uint32_t CountOf(const Four& four, uint32_t bound) {
  uint32_t counts = 0;
#pragma unroll
  for (int i = 0; i < kFour; ++i) {
    if (i >= four.valid) continue;
    const uint32_t bits = Magnitude(four.values.element[i]);
    counts += (bits > bound ? 1u : 0u) + (bits == bound ? 1u << 16 : 0u);
  }
  return counts;
}

__device__ inline BlockCount Unpacked(uint32_t counts) { return {counts & 0xffffu, counts >> 16}; }

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

// Counts the digit at `shift` of those whose higher digits are the bound's. Gradients have few
// exponents: lanes with the same digit add up first, and each warp has counts of its own.
__global__ void HistogramKernel(const float* values, uint64_t count, int shift, State* state) {
  __shared__ unsigned int counts[kWarps][kDigits];
  for (int warp = 0; warp < kWarps; ++warp) counts[warp][threadIdx.x] = 0;
  __syncthreads();
  unsigned int* const mine = counts[threadIdx.x / kWarp];
  const int lane = threadIdx.x % kWarp;
  const bool is_aligned = IsAlignedFor<Vector<float, kFour>>(values);
  const uint32_t bound = state->bound;
  const int higher = shift + kDigitBits;
  const uint64_t step = uint64_t{gridDim.x} * kThreads * kFour;
  // The same number of turns for all lanes, which look at each other.
  const uint64_t first = (uint64_t{blockIdx.x} * kThreads + threadIdx.x - lane) * kFour;
  for (uint64_t base = first; base < count; base += step) {
    const Four four = Load(values, base + uint64_t(lane) * kFour, count, is_aligned);
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      const uint32_t bits = Magnitude(four.values.element[i]);
      const bool same = i < four.valid && (higher >= 32 || (bits >> higher) == (bound >> higher));
      const unsigned counted = __ballot_sync(kWholeWarp, same);
      if (!same) continue;
      const unsigned digit = (bits >> shift) & (kDigits - 1);
      const unsigned peers = __match_any_sync(counted, digit);
      if (__ffs(static_cast<int>(peers)) - 1 == lane) atomicAdd(&mine[digit], __popc(peers));
    }
    __syncwarp();
  }
  __syncthreads();
  unsigned int sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += counts[warp][threadIdx.x];
  if (sum > 0) {
    atomicAdd(&state->histogram[threadIdx.x], static_cast<unsigned long long>(sum));
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

// What lies before each lane, and the total of the warp.
__device__ inline uint32_t BeforeInWarp(uint32_t mine, uint32_t* total) {
  const int lane = threadIdx.x % kWarp;
  uint32_t through = mine;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const uint32_t other = __shfl_up_sync(kWholeWarp, through, distance);
    if (lane >= distance) through += other;
  }
  *total = __shfl_sync(kWholeWarp, through, kWarp - 1);
  return through - mine;
}

// Of this lane's elements in its first turn; in the next they are kPerTurn further on.
__device__ inline uint64_t BeginOfLane() {
  return uint64_t{blockIdx.x} * kPerBlock + uint64_t{threadIdx.x / kWarp} * kPerWarp +
         uint64_t{threadIdx.x % kWarp} * kFour;
}

__device__ inline void LoadTurns(const float* values, uint64_t count, Four* turns) {
  const bool is_aligned = IsAlignedFor<Vector<float, kFour>>(values);
  const uint64_t begin = BeginOfLane();
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
    turns[t] = Load(values, begin + uint64_t(t) * kPerTurn, count, is_aligned);
  }
}

__global__ void CountKernel(const float* values, uint64_t count, const State* state,
                            BlockCount* counts) {
  __shared__ uint32_t block;
  if (threadIdx.x == 0) block = 0;
  __syncthreads();
  Four turns[kTurns];
  LoadTurns(values, count, turns);
  uint32_t mine = 0;
#pragma unroll
  for (int t = 0; t < kTurns; ++t) mine += CountOf(turns[t], state->bound);
  uint32_t total;
  BeforeInWarp(mine, &total);
  if (threadIdx.x % kWarp == 0) atomicAdd(&block, total);
  __syncthreads();
  if (threadIdx.x == 0) counts[blockIdx.x] = Unpacked(block);
}

// One block: counts become what lies before each block; *found is what is selected in all.
__global__ void AddUpKernel(BlockCount* counts, uint64_t blocks, const State* state,
                            uint64_t* found) {
  __shared__ BlockCount sums[2][kAddUpThreads];
  const uint64_t each = (blocks + kAddUpThreads - 1) / kAddUpThreads;
  const uint64_t begin = uint64_t{threadIdx.x} * each;
  const uint64_t end = begin + each < blocks ? begin + each : blocks;
  BlockCount mine = {0, 0};
  for (uint64_t i = begin; i < end; ++i) mine = mine + counts[i];
  int now = 0;
  sums[now][threadIdx.x] = mine;
  __syncthreads();
  for (unsigned distance = 1; distance < kAddUpThreads; distance *= 2) {
    BlockCount sum = sums[now][threadIdx.x];
    if (threadIdx.x >= distance) sum = sum + sums[now][threadIdx.x - distance];
    sums[1 - now][threadIdx.x] = sum;
    now = 1 - now;
    __syncthreads();
  }
  BlockCount before = {0, 0};
  if (threadIdx.x > 0) before = sums[now][threadIdx.x - 1];
  for (uint64_t i = begin; i < end; ++i) {
    const BlockCount here = counts[i];
    counts[i] = before;
    before = before + here;
  }
  if (threadIdx.x == 0) {
    const BlockCount all = sums[now][kAddUpThreads - 1];
    const uint64_t wanted = state->equal_wanted;
    *found = all.above + (all.equal < wanted ? all.equal : wanted);
  }
}

// What a selection is written to.
struct Output {
  uint64_t capacity;
  uint32_t* indices;
  float* chosen;
};

// `before`: what lies before these elements, of which the first has the index `begin`.
__device__ inline void WriteFour(const Four& four, uint64_t begin, BlockCount before,
                                 uint32_t bound, uint64_t wanted, const Output& output) {
#pragma unroll
  for (int i = 0; i < kFour; ++i) {
    if (i >= four.valid) continue;
    const float value = four.values.element[i];
    const uint32_t bits = Magnitude(value);
    if (bits > bound || (bits == bound && before.equal < wanted)) {
      const uint64_t place = before.above + (before.equal < wanted ? before.equal : wanted);
      if (place < output.capacity) {
        output.indices[place] = static_cast<uint32_t>(begin + i);
        output.chosen[place] = value;
      }
    }
    before.above += bits > bound;
    before.equal += bits == bound;
  }
}

__global__ void WriteKernel(const float* values, uint64_t count, const State* state,
                            const BlockCount* counts, Output output) {
  __shared__ uint32_t totals[kWarps];
  const uint32_t bound = state->bound;
  Four turns[kTurns];
  LoadTurns(values, count, turns);
  // In the order of the indices: a turn after the other, and in a turn a lane after the other.
  uint32_t before_lane[kTurns];
  uint32_t of_warp = 0;
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
    uint32_t total;
    before_lane[t] = of_warp + BeforeInWarp(CountOf(turns[t], bound), &total);
    of_warp += total;
  }
  const unsigned warp = threadIdx.x / kWarp;
  if (threadIdx.x % kWarp == 0) totals[warp] = of_warp;
  __syncthreads();
  if (of_warp == 0) return;
  BlockCount before = counts[blockIdx.x];
  for (unsigned w = 0; w < warp; ++w) before = before + Unpacked(totals[w]);
  const uint64_t begin = BeginOfLane();
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
    WriteFour(turns[t], begin + uint64_t(t) * kPerTurn, before + Unpacked(before_lane[t]), bound,
              state->equal_wanted, output);
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
  AddUpKernel<<<1, kAddUpThreads, 0, stream>>>(counts, blocks, state, found);
  if (grid > 0) {
    WriteKernel<<<grid, kThreads, 0, stream>>>(values, count, state, counts,
                                               {capacity, indices, chosen});
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
  const uint64_t blocks = (count + kThreads * kFour - 1) / (kThreads * kFour);
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
