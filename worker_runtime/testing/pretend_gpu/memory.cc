#include "worker_runtime/testing/pretend_gpu/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace cadre::pretend_gpu {
namespace {

// Only address space is reserved: pages are allocated when they are touched. ThreadSanitizer leaves
// 1.5 TiB of it.
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
    // An unusable page between two blocks catches accesses beyond the end of a block.
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

  // Returns the block that contains the address, or beyond whose end the address lies.
  std::map<const char*, Block>::iterator Find(const void* address) {
    const auto* const at = static_cast<const char*>(address);
    auto found = blocks_.upper_bound(at);
    if (found == blocks_.begin()) return blocks_.end();
    --found;
    return at <= found->first + found->second.bytes ? found : blocks_.end();
  }

  // Returns what is wrong with the order of `use` and the earlier uses.
  static std::string Add(PastUse use, std::vector<PastUse>* uses) {
    std::string mistake;
    std::vector<PastUse> kept;
    for (PastUse& past : *uses) {
      // Its communicator has ended, and the thread that ended it waited for the job.
      if (past.ended != nullptr && *past.ended) continue;
      const bool overlaps = past.begin < use.end && use.begin < past.end;
      const bool ordered = ComesBefore(*past.stream, past.job, *use.stream);
      if (overlaps && !ordered && (past.writes || use.writes) && mistake.empty()) {
        mistake = use.what + " on " + use.stream->name() +
                  (use.writes ? " writes memory that " : " reads memory that ") + past.what +
                  " on " + past.stream->name() + (past.writes ? " writes" : " reads") +
                  ", and nothing makes it wait";
      }
      // Jobs that are ordered after `use` are ordered after `past`, too.
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

namespace {

using Lock = std::unique_lock<std::mutex>;

std::atomic<int> streams{0};

struct Seen {
  std::mutex mutex;
  Moment moment;
};

Seen& SeenByHost() {
  static auto* const seen = new Seen;
  return *seen;
}

void Merge(const Moment& from, Moment* to) {
  for (const auto& [stream, job] : from) {
    uint64_t& known = (*to)[stream];
    known = std::max(known, job);
  }
}

bool Has(const Moment& moment, int stream, uint64_t job) {
  const auto found = moment.find(stream);
  return found != moment.end() && found->second >= job;
}

}  // namespace

Stream::Stream(int device, std::string name)
    : device_(device),
      number_(++streams),
      name_(!name.empty()
                ? std::move(name)
                : "stream " + std::to_string(number_) + " of GPU " + std::to_string(device)) {
  std::thread([this] { Run(); }).detach();
}

uint64_t Stream::Push(Job job) {
  uint64_t number = 0;
  {
    const Lock lock(mutex_);
    jobs_.push_back(std::move(job));
    number = ++pushed_;
  }
  changed_.notify_all();
  return number;
}

Moment Stream::Pushed() const {
  const Lock lock(mutex_);
  Moment moment = after_;
  moment[number_] = pushed_;
  return moment;
}

void Stream::ComeAfter(const Moment& moment) {
  const Lock lock(mutex_);
  Merge(moment, &after_);
}

uint64_t Stream::done() const {
  const Lock lock(mutex_);
  return done_;
}

void Stream::WaitFor(uint64_t job) const {
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= job; });
}

void Stream::Hold(bool hold) {
  {
    const Lock lock(mutex_);
    held_ = hold;
  }
  changed_.notify_all();
}

void Stream::Close() {
  {
    const Lock lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

void Stream::Run() {
  for (;;) {
    Job job;
    {
      Lock lock(mutex_);
      changed_.wait(lock,
                    [this] { return (!jobs_.empty() && !held_) || (jobs_.empty() && closed_); });
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
    job = nullptr;  // what it holds goes before it counts as done
    {
      const Lock lock(mutex_);
      ++done_;
    }
    changed_.notify_all();
  }
}

void HostHasSeen(const Moment& moment) {
  Seen& seen = SeenByHost();
  const std::lock_guard<std::mutex> lock(seen.mutex);
  Merge(moment, &seen.moment);
}

bool ComesBefore(const Stream& earlier, uint64_t job, const Stream& stream) {
  if (earlier.number() == stream.number()) return true;
  if (Has(stream.Pushed(), earlier.number(), job)) return true;
  Seen& seen = SeenByHost();
  const std::lock_guard<std::mutex> lock(seen.mutex);
  return Has(seen.moment, earlier.number(), job);
}

std::shared_ptr<Event::Mark> Event::mark() const {
  const Lock lock(mutex_);
  return mark_;
}

void Event::Record(Stream& stream) {
  const auto mark = std::make_shared<Mark>();
  // Everything in the mark's moment is complete before the mark itself is pushed.
  mark->moment = stream.Pushed();
  stream.Push([mark] {
    {
      const Lock lock(mark->mutex);
      mark->happened = true;
      mark->time = std::chrono::steady_clock::now();
    }
    mark->changed.notify_all();
  });
  const Lock lock(mutex_);
  mark_ = mark;
}

void Event::MakeWait(Stream& stream) const {
  const auto waited_for = mark();
  if (waited_for == nullptr) return;
  stream.ComeAfter(waited_for->moment);
  stream.Push([waited_for] {
    Lock lock(waited_for->mutex);
    waited_for->changed.wait(lock, [&] { return waited_for->happened; });
  });
}

bool Event::Happened() const {
  const auto asked = mark();
  if (asked == nullptr) return true;
  {
    const Lock lock(asked->mutex);
    if (!asked->happened) return false;
  }
  HostHasSeen(asked->moment);
  return true;
}

void Event::Wait() const {
  const auto waited_for = mark();
  if (waited_for == nullptr) return;
  {
    Lock lock(waited_for->mutex);
    waited_for->changed.wait(lock, [&] { return waited_for->happened; });
  }
  HostHasSeen(waited_for->moment);
}

bool Event::recorded() const { return mark() != nullptr; }

std::chrono::steady_clock::time_point Event::time() const {
  const auto asked = mark();
  if (asked == nullptr) return {};
  const Lock lock(asked->mutex);
  return asked->time;
}

namespace {

struct Mistakes {
  std::atomic<bool> any{false};
  std::mutex mutex;
  std::string first;
};

// Never destroyed: the streams' threads use it until the process ends.
Mistakes& All() {
  static auto* const all = new Mistakes;
  return *all;
}

}  // namespace

void ReportMistake(const std::string& text) {
  std::fprintf(stderr, "pretend GPU, process %d: %s\n", static_cast<int>(getpid()), text.c_str());
  const std::lock_guard<std::mutex> lock(All().mutex);
  if (All().first.empty()) All().first = text;
  All().any = true;
}

std::string FirstMistake() {
  const std::lock_guard<std::mutex> lock(All().mutex);
  return All().first;
}

bool HasMistake() { return All().any; }

}  // namespace cadre::pretend_gpu
