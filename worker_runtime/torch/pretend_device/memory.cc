#include "worker_runtime/torch/pretend_device/memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "c10/util/Exception.h"
#include "torch/version.h"
#include "worker_runtime/torch/pretend_device/streams.h"

namespace cadre::pretend {
namespace {

// Reserved, not used: pages come when they are touched.
constexpr size_t kArenaBytes = size_t{8} << 30;
constexpr size_t kAlignment = 256;
constexpr int kFreshByte = 0xff;

struct Block {
  size_t offset = 0;
  size_t bytes = 0;
  Queue* owner = nullptr;
  std::set<Queue*> users;
};

class Arena {
 public:
  static Arena& Get() {
    static auto* const arena = new Arena;
    return *arena;
  }

  Block* Take(size_t bytes, Queue& owner) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto* const block = new Block{0, bytes, &owner, {}};
    std::vector<size_t>& free = free_[bytes];
    if (!free.empty()) {
      block->offset = free.back();
      free.pop_back();
    } else {
      TORCH_CHECK(top_ + bytes <= kArenaBytes, "pretend device: out of memory");
      block->offset = top_;
      top_ += bytes;
    }
    live_ += bytes;
    blocks_[fence_ + block->offset] = block;
    return block;
  }

  // The users that were told of until now; nobody adds another.
  std::set<Queue*> Close(Block& block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.erase(fence_ + block.offset);
    live_ -= block.bytes;
    std::set<Queue*> users = block.users;
    users.insert(block.owner);
    return users;
  }

  void GiveBack(Block* block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_[block->bytes].push_back(block->offset);
    delete block;
  }

  void AddUser(const void* pointer, Queue& queue) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto block = blocks_.find(static_cast<const char*>(pointer));
    if (block != blocks_.end()) block->second->users.insert(&queue);
  }

  bool Has(const void* pointer) const {
    const auto* const at = static_cast<const char*>(pointer);
    return at >= fence_ && at < fence_ + kArenaBytes;
  }
  char* Fenced(const Block& block) { return fence_ + block.offset; }
  char* Twin(const Block& block) { return twin_ + block.offset; }
  char* Twin(const void* pointer) { return twin_ + (static_cast<const char*>(pointer) - fence_); }
  size_t live() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return live_;
  }

 private:
  Arena() : fence_(Map(PROT_NONE)), twin_(Map(PROT_READ | PROT_WRITE)) {}

  static char* Map(int protection) {
    void* const at =
        mmap(nullptr, kArenaBytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(at != MAP_FAILED, "pretend device: mmap: ", std::strerror(errno));
    return static_cast<char*>(at);
  }

  char* const fence_;
  char* const twin_;
  mutable std::mutex mutex_;
  size_t top_ = 0;
  size_t live_ = 0;
  std::map<size_t, std::vector<size_t>> free_;  // offsets by size
  std::map<const char*, Block*> blocks_;
};

void Release(void* context) {
  auto* const block = static_cast<Block*>(context);
  const std::set<Queue*> users = Arena::Get().Close(*block);
  const auto left = std::make_shared<std::atomic<size_t>>(users.size());
  for (Queue* const queue : users) {
    queue->Push([block, left] {
      if (--*left > 0) return;
      std::memset(Arena::Get().Twin(*block), kFreshByte, block->bytes);
      Arena::Get().GiveBack(block);
    });
  }
}

// Its function is const until 2.1 or so, and another one is asked for since then.
struct OnDevice final : c10::Allocator {
#if TORCH_VERSION_MAJOR >= 2
  c10::DataPtr allocate(size_t bytes) override { return AllocateOnDevice(bytes); }
#else
  c10::DataPtr allocate(size_t bytes) const override { return AllocateOnDevice(bytes); }
#endif
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const {
    CurrentQueue(CurrentDevice())
        .Push([to = AsDeviceSeesIt(to), from = AsDeviceSeesIt(from), bytes] {
          std::memcpy(to, from, bytes);
        });
  }
};

class PinnedRanges {
 public:
  static PinnedRanges& Get() {
    static auto* const ranges = new PinnedRanges;
    return *ranges;
  }
  void Add(const void* begin, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranges_[static_cast<const char*>(begin)] = bytes;
  }
  void Remove(const void* begin) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranges_.erase(static_cast<const char*>(begin));
  }
  bool Have(const void* pointer) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto* const at = static_cast<const char*>(pointer);
    auto range = ranges_.upper_bound(at);
    if (range == ranges_.begin()) return false;
    --range;
    return at < range->first + range->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<const char*, size_t> ranges_;  // bytes by beginning
};

void Unpin(void* pointer) {
  PinnedRanges::Get().Remove(pointer);
  std::free(pointer);
}

c10::DataPtr AllocatePinned(size_t bytes) {
  void* memory = nullptr;
  if (bytes > 0) {
    TORCH_CHECK(posix_memalign(&memory, 4096, bytes) == 0, "pretend device: out of pinned memory");
    PinnedRanges::Get().Add(memory, bytes);
  }
  return {memory, memory, &Unpin, c10::Device(c10::kCPU)};
}

struct Pinned final : c10::Allocator {
#if TORCH_VERSION_MAJOR >= 2
  c10::DataPtr allocate(size_t bytes) override { return AllocatePinned(bytes); }
#else
  c10::DataPtr allocate(size_t bytes) const override { return AllocatePinned(bytes); }
#endif
  c10::DeleterFnPtr raw_deleter() const override { return &Unpin; }
  void copy_data(void* to, const void* from, size_t bytes) const { std::memcpy(to, from, bytes); }
};

}  // namespace

c10::DataPtr AllocateOnDevice(size_t bytes) {
  const c10::DeviceIndex current = CurrentDevice();
  const c10::Device device(kPretend, current);
  if (bytes == 0) return {nullptr, nullptr, &Release, device};
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  Queue& owner = CurrentQueue(current);
  Block* const block = Arena::Get().Take(bytes, owner);
  owner.Push([twin = Arena::Get().Twin(*block), bytes] { std::memset(twin, kFreshByte, bytes); });
  return {Arena::Get().Fenced(*block), block, &Release, device};
}

c10::Allocator* DeviceAllocator() {
  static auto* const allocator = new OnDevice;
  return allocator;
}

c10::Allocator* PinnedAllocator() {
  static auto* const allocator = new Pinned;
  return allocator;
}

char* AsDeviceSeesIt(const void* device_pointer) {
  TORCH_CHECK(Arena::Get().Has(device_pointer), "pretend device: not one of its pointers");
  return Arena::Get().Twin(device_pointer);
}

bool IsPinned(const void* pointer) { return PinnedRanges::Get().Have(pointer); }

void UsedOn(const void* device_pointer, Queue& queue) {
  Arena::Get().AddUser(device_pointer, queue);
}

size_t LiveBytes() { return Arena::Get().live(); }

}  // namespace cadre::pretend
