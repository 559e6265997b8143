// The pretend device: its queue and events, streams, libtorch's device guard for it, memory, and
// costs.
#include "worker_runtime/torch/pretend_device/queue.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "c10/core/Allocator.h"
#include "c10/core/impl/DeviceGuardImplInterface.h"
#include "c10/util/Exception.h"
#include "torch/version.h"
#if TORCH_VERSION_MAJOR >= 2
#include "ATen/detail/PrivateUse1HooksInterface.h"
#endif

namespace cadre::pretend {

using Lock = std::unique_lock<std::mutex>;

Queue::Queue() {
  std::thread([this] { Run(); }).detach();
}

void Queue::Push(Job job, double seconds) {
  {
    const Lock lock(mutex_);
    jobs_.push_back({std::move(job), seconds});
    ++pushed_;
  }
  changed_.notify_all();
}

void Queue::Run() {
  for (;;) {
    Entry entry;
    {
      Lock lock(mutex_);
      changed_.wait(lock, [this] { return !jobs_.empty() && !held_; });
      entry = std::move(jobs_.front());
      jobs_.pop_front();
    }
    std::string error;
    try {
      entry.job();
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    entry.job = nullptr;  // the captured objects are destroyed before the job counts as done
    now_ += entry.seconds;
    {
      const Lock lock(mutex_);
      ++done_;
      if (error_.empty()) error_ = error;
    }
    changed_.notify_all();
  }
}

bool Queue::idle() const {
  CountWait();
  const Lock lock(mutex_);
  return done_ == pushed_;
}

void Queue::Synchronize() {
  CountWait();
  Lock lock(mutex_);
  changed_.wait(lock, [this, until = pushed_] { return done_ >= until; });
  if (!error_.empty()) throw std::runtime_error("pretend device: asynchronous error: " + error_);
}

void Queue::Hold(bool hold) {
  {
    const Lock lock(mutex_);
    held_ = hold;
  }
  changed_.notify_all();
}

uint64_t Queue::done() const {
  const Lock lock(mutex_);
  return done_;
}

void Event::Record(Queue& queue) {
  recorded_on_ = &queue;
  queue.Push([state = state_, version = ++version_, &queue] {
    {
      const Lock lock(state->mutex);
      state->times[version] = queue.now();
    }
    state->changed.notify_all();
  });
}

void Event::Block(Queue& queue) const {
  if (version_ == 0) return;  // never recorded
  queue.Push([state = state_, version = version_, &queue] {
    Lock lock(state->mutex);
    state->changed.wait(lock, [&] { return state->Passed(version); });
    queue.AdvanceTo(state->times[version]);
  });
}

void Event::CountWait() const {
  if (recorded_on_ != nullptr) recorded_on_->CountWait();
}

bool Event::done() const {
  CountWait();
  const Lock lock(state_->mutex);
  return state_->Passed(version_);
}

void Event::Synchronize() const {
  CountWait();
  Lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->Passed(version_); });
}

namespace {

struct Streams {
  std::mutex mutex;
  std::deque<std::deque<Queue*>> queues;  // by device and stream
};

Streams& All() {
  static auto* const all = new Streams;
  return *all;
}

thread_local c10::DeviceIndex current_device = 0;
thread_local std::map<c10::DeviceIndex, int64_t> current_stream;

c10::Stream StreamOf(c10::DeviceIndex device, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kPretend, device), id);
}

std::deque<Queue*> QueuesOf(c10::DeviceIndex device) {
  const std::lock_guard<std::mutex> lock(All().mutex);
  return All().queues.at(static_cast<size_t>(device));
}

}  // namespace

void MakeDevices(int count) {
  {
    const std::lock_guard<std::mutex> lock(All().mutex);
    All().queues.resize(static_cast<size_t>(count));
  }
  for (int device = 0; device < count; ++device) NewStream(static_cast<c10::DeviceIndex>(device));
}

int DeviceCount() {
  const std::lock_guard<std::mutex> lock(All().mutex);
  return static_cast<int>(All().queues.size());
}

c10::DeviceIndex CurrentDevice() { return current_device; }

c10::DeviceIndex ExchangeDevice(c10::DeviceIndex device) {
  return std::exchange(current_device, device);
}

c10::Stream CurrentStream(c10::DeviceIndex device) {
  return StreamOf(device, current_stream[device]);
}

c10::Stream ExchangeStream(c10::Stream stream) {
  const c10::DeviceIndex device = stream.device_index();
  return StreamOf(device, std::exchange(current_stream[device], stream.id()));
}

c10::Stream NewStream(c10::DeviceIndex device) {
  const std::lock_guard<std::mutex> lock(All().mutex);
  std::deque<Queue*>& queues = All().queues.at(static_cast<size_t>(device));
  queues.push_back(new Queue);
  return StreamOf(device, static_cast<int64_t>(queues.size()) - 1);
}

Queue& QueueOf(const c10::Stream& stream) {
  const std::lock_guard<std::mutex> lock(All().mutex);
  return *All()
              .queues.at(static_cast<size_t>(stream.device_index()))
              .at(static_cast<size_t>(stream.id()));
}

Queue& CurrentQueue(c10::DeviceIndex device) { return QueueOf(CurrentStream(device)); }

void SynchronizeDevice(c10::DeviceIndex device) {
  for (Queue* const queue : QueuesOf(device)) queue->Synchronize();
}

uint64_t HostWaits(c10::DeviceIndex device) {
  uint64_t waits = 0;
  for (const Queue* const queue : QueuesOf(device)) waits += queue->waits();
  return waits;
}

namespace {

c10::DeviceIndex IndexOf(c10::Device device) {
  return device.index() < 0 ? CurrentDevice() : device.index();
}

Event* AsEvent(void* event) { return static_cast<Event*>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kPretend; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kPretend, ExchangeDevice(IndexOf(device))};
  }
  c10::Device getDevice() const override { return {kPretend, CurrentDevice()}; }
  void setDevice(c10::Device device) const override { ExchangeDevice(IndexOf(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    ExchangeDevice(IndexOf(device));
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(DeviceCount());
  }

  c10::Stream getStream(c10::Device device) const noexcept override {
    return CurrentStream(IndexOf(device));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(kPretend, IndexOf(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    return NewStream(IndexOf(device));
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return ExchangeStream(stream);
  }
  bool queryStream(const c10::Stream& stream) const override { return QueueOf(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    QueueOf(stream).Synchronize();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    UsedOn(data.get(), QueueOf(stream));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new Event;
    AsEvent(*event)->Record(QueueOf(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) AsEvent(event)->Block(QueueOf(stream));
  }
  bool queryEvent(void* event) const override { return event == nullptr || AsEvent(event)->done(); }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete AsEvent(event);
  }

  // Not every release has this function, hence no `override`.
  void synchronizeEvent(void* event) const {
    if (event != nullptr) AsEvent(event)->Synchronize();
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/ = 0) const {
    return NewStream(IndexOf(device));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const { SynchronizeDevice(device); }
  void* getStreamNativeHandle(const c10::Stream stream) const { return &QueueOf(stream); }
};

#if TORCH_VERSION_MAJOR >= 2
struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return DeviceCount() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(DeviceCount());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { ExchangeDevice(device); }
  c10::DeviceIndex getCurrentDevice() const override { return CurrentDevice(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return ExchangeDevice(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return ExchangeDevice(device);
  }
  bool isPinnedPtr(const void* data) const override { return IsPinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return PinnedAllocator(); }
  // torch::manual_seed() asks for every device's generator.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex /*device*/) const override {
    static const auto* const generator = new at::Generator(at::detail::createCPUGenerator());
    return *generator;
  }
};
#endif

}  // namespace

void RegisterGuard() {
  c10::SetAllocator(kPretend, DeviceAllocator());
  const c10::impl::DeviceGuardImplRegistrar registrar(kPretend, new Guard);
#if TORCH_VERSION_MAJOR >= 2
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  // at::getAccelerator() sees the device only if it has a name of its own.
  c10::register_privateuse1_backend("pretend");
#endif
}

namespace {

// Address space is reserved; pages are allocated when they are touched.
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

  // Returns the queues that were registered as users so far; no more can be added.
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

// allocate() is const until about 2.1; later releases ask for another function too.
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

namespace {

std::mutex mutex;
Costs costs_now;  // guarded by mutex

}  // namespace

double Costs::OfOperator(size_t its_bytes, double its_products) const {
  return operator_seconds +
         std::max(static_cast<double>(its_bytes) / bytes, its_products / products);
}

double Costs::OfCollective(size_t its_bytes) const {
  return bus_seconds + static_cast<double>(its_bytes) / bus_bytes;
}

void SetCosts(const Costs& costs) {
  const std::lock_guard<std::mutex> lock(mutex);
  costs_now = costs;
}

Costs GetCosts() {
  const std::lock_guard<std::mutex> lock(mutex);
  return costs_now;
}

}  // namespace cadre::pretend
