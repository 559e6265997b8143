#include "worker_runtime/testing/pretend_gpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "worker_runtime/testing/pretend_gpu/mistakes.h"

namespace cadre::pretend_gpu {
namespace {

// Addresses only: pages come when they are touched. ThreadSanitizer leaves 1.5 TiB of them.
constexpr size_t kArenaBytes = size_t{1} << 38;
constexpr size_t kPage = 4096;
constexpr size_t kDefaultMib = 16384;
constexpr int kFreshByte = 0xff;

struct PastUse {
  size_t begin = 0;
  size_t end = 0;
  bool writes = false;
  const Stream* stream = nullptr;
  uint64_t job = 0;
  std::string what;
  Ended ended;
};

struct Block {
  size_t bytes = 0;
  int device = 0;
  std::vector<PastUse> uses;
};

size_t DeviceBytes() {
  const char* const mib = getenv("CADRE_PRETEND_GPU_MIB");
  return (mib != nullptr && atoll(mib) > 0 ? static_cast<size_t>(atoll(mib)) : kDefaultMib) << 20;
}

size_t Pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

class Arena {
 public:
  static Arena& Get() {
    static auto* const arena = new Arena;
    return *arena;
  }

  void* Allocate(int device, size_t bytes) {
    const size_t taken = Pages(std::max<size_t>(bytes, 1));
    const std::lock_guard<std::mutex> lock(mutex_);
    // A page between two of them stays unusable, for what runs over its end.
    if (bytes > device_bytes_ || live_[device] + taken > device_bytes_ ||
        top_ + taken + kPage > kArenaBytes) {
      return nullptr;
    }
    char* const twin = twin_ + top_;
    if (mprotect(twin, taken, PROT_READ | PROT_WRITE) != 0) return nullptr;
    memset(twin, kFreshByte, bytes);
    char* const address = fence_ + top_;
    blocks_[address] = Block{bytes, device, {}};
    live_[device] += taken;
    top_ += taken + kPage;
    return address;
  }

  bool Has(const void* address) const {
    const auto* const at = static_cast<const char*>(address);
    return at >= fence_ && at < fence_ + kArenaBytes;
  }
  char* Twin(const void* address) const {
    return twin_ + (static_cast<const char*>(address) - fence_);
  }

  std::string WhyNot(const void* address, size_t bytes, int device) {
    if (!Has(address)) return "is not memory of a GPU";
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = Find(address);
    if (found == blocks_.end()) return "was freed before";
    const Block& block = found->second;
    const size_t begin = static_cast<size_t>(static_cast<const char*>(address) - found->first);
    if (begin + bytes > block.bytes) {
      return "is " + std::to_string(begin + bytes - block.bytes) + " bytes too short";
    }
    if (device >= 0 && block.device != device) {
      return "lies on GPU " + std::to_string(block.device) + ", not on GPU " +
             std::to_string(device);
    }
    return "";
  }

  void Note(const void* address, PastUse use) {
    std::string mistake;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = Find(address);
      if (found == blocks_.end()) return;
      use.begin = static_cast<size_t>(static_cast<const char*>(address) - found->first);
      use.end += use.begin;
      mistake = Add(std::move(use), &found->second.uses);
    }
    if (!mistake.empty()) ReportMistake(mistake);
  }

  bool Free(void* address) {
    std::vector<PastUse> uses;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = blocks_.find(static_cast<char*>(address));
      if (found == blocks_.end()) return false;
      uses = found->second.uses;
    }
    for (const PastUse& use : uses) {
      if (use.stream->done() >= use.job) continue;
      if (use.ended != nullptr && !*use.ended) {
        ReportMistake("memory was freed while " + use.what + " on " + use.stream->name() +
                      " used it");
        return true;
      }
      use.stream->WaitFor(use.job);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(static_cast<char*>(address));
    if (found == blocks_.end()) return false;
    const size_t taken = Pages(std::max<size_t>(found->second.bytes, 1));
    char* const twin = Twin(address);
    mmap(twin, taken, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    live_[found->second.device] -= taken;
    blocks_.erase(found);
    return true;
  }

 private:
  Arena() : device_bytes_(DeviceBytes()), fence_(Map()), twin_(Map()) {}

  static char* Map() {
    void* const at =
        mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
      perror("pretend GPU: mmap");
      abort();
    }
    return static_cast<char*>(at);
  }

  // The block that the address lies in or runs over the end of.
  std::map<const char*, Block>::iterator Find(const void* address) {
    const auto* const at = static_cast<const char*>(address);
    auto found = blocks_.upper_bound(at);
    if (found == blocks_.begin()) return blocks_.end();
    --found;
    return at <= found->first + found->second.bytes ? found : blocks_.end();
  }

  // Says what is wrong with the order of `use` and the earlier ones.
  static std::string Add(PastUse use, std::vector<PastUse>* uses) {
    std::string mistake;
    std::vector<PastUse> kept;
    for (PastUse& past : *uses) {
      // Its communicator has ended, and whoever ended it waited for it.
      if (past.ended != nullptr && *past.ended) continue;
      const bool overlaps = past.begin < use.end && use.begin < past.end;
      const bool ordered = ComesBefore(*past.stream, past.job, *use.stream);
      if (overlaps && !ordered && (past.writes || use.writes) && mistake.empty()) {
        mistake = use.what + " on " + use.stream->name() +
                  (use.writes ? " writes memory that " : " reads memory that ") + past.what +
                  " on " + past.stream->name() + (past.writes ? " writes" : " reads") +
                  ", and nothing makes it wait";
      }
      // Whoever comes after `use` comes after `past`, too.
      const bool covered =
          ordered && past.begin >= use.begin && past.end <= use.end && (use.writes || !past.writes);
      if (!covered) kept.push_back(std::move(past));
    }
    kept.push_back(std::move(use));
    *uses = std::move(kept);
    return mistake;
  }

  const size_t device_bytes_;
  char* const fence_;
  char* const twin_;
  std::mutex mutex_;
  size_t top_ = 0;
  std::map<int, size_t> live_;           // bytes by device
  std::map<const char*, Block> blocks_;  // by beginning
};

struct Pinned {
  std::mutex mutex;
  std::map<const char*, size_t> ranges;  // bytes by beginning

  static Pinned& Get() {
    static auto* const pinned = new Pinned;
    return *pinned;
  }
};

}  // namespace

void* AllocateOnDevice(int device, size_t bytes) { return Arena::Get().Allocate(device, bytes); }
bool IsOnDevice(const void* address) { return Arena::Get().Has(address); }
std::string WhyNotOnDevice(const void* address, size_t bytes, int device) {
  return Arena::Get().WhyNot(address, bytes, device);
}
char* AsDeviceSeesIt(const void* address) { return Arena::Get().Twin(address); }
bool FreeOnDevice(void* address) { return Arena::Get().Free(address); }

void NoteUse(const Use& use, const Stream& stream, uint64_t number, const std::string& what,
             const Ended& ended) {
  Arena::Get().Note(use.address, {0, use.bytes, use.writes, &stream, number, what, ended});
}

void* AllocatePinned(size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, kPage, std::max<size_t>(bytes, 1)) != 0) return nullptr;
  const std::lock_guard<std::mutex> lock(Pinned::Get().mutex);
  Pinned::Get().ranges[static_cast<char*>(memory)] = bytes;
  return memory;
}

bool FreePinned(void* address) {
  {
    const std::lock_guard<std::mutex> lock(Pinned::Get().mutex);
    if (Pinned::Get().ranges.erase(static_cast<char*>(address)) == 0) return false;
  }
  free(address);
  return true;
}

bool IsPinned(const void* address) {
  const std::lock_guard<std::mutex> lock(Pinned::Get().mutex);
  const auto* const at = static_cast<const char*>(address);
  auto range = Pinned::Get().ranges.upper_bound(at);
  if (range == Pinned::Get().ranges.begin()) return false;
  --range;
  return at < range->first + range->second;
}

}  // namespace cadre::pretend_gpu
