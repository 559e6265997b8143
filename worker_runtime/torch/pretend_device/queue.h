// Streams, events and memory of the pretend device, and its simulated time. A stream is a thread
// with a queue of jobs and a simulated clock. Each job states what it costs, and a job that waits
// for an event starts no earlier than the event's time, so simulated times depend on which work
// waits for which, and not on the machine.
#ifndef CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_QUEUE_H_
#define CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_QUEUE_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "c10/core/Allocator.h"
#include "c10/core/Device.h"
#include "c10/core/Stream.h"

namespace cadre::pretend {

// How long work on the pretend device takes in the device's simulated time. By default it takes
// none.

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// Times are in seconds, rates are per second.
struct Costs {
  double operator_seconds = 0;
  // Bytes that an operator reads or writes, counted once for each tensor.
  double bytes = kUnlimited;
  // Multiplications of two elements in matrix products.
  double products = kUnlimited;
  // What a collective takes from the moment at which the last rank has entered it; the bytes of its
  // buffer are added at `bus_bytes` per second.
  double bus_seconds = 0;
  double bus_bytes = kUnlimited;

  double OfOperator(size_t its_bytes, double its_products = 0) const;
  double OfCollective(size_t its_bytes) const;
  // Whether the ranks must exchange their simulated times.
  bool HaveBus() const { return OfCollective(1) > 0; }
};

// Sets the costs of all devices; call it while nothing runs on them. The host's work takes no
// simulated time: a test must count how often the host waits (HostWaits()).
void SetCosts(const Costs& costs);
Costs GetCosts();

// Thread safe. A Queue is never destroyed: streams live as long as the process, as a device's do.
class Queue {
 public:
  using Job = std::function<void()>;

  Queue();

  // The job takes `seconds` of the stream's simulated time.
  void Push(Job job, double seconds = 0);
  // Whether all jobs are done. This counts as a wait, as Synchronize() does, because polling is
  // waiting.
  bool idle() const;
  // Returns when the jobs pushed before are done. Rethrows the first exception of a job, now and at
  // every later call, as CUDA's sticky errors do.
  void Synchronize();
  // Returns how often the host has waited for this stream or for an event recorded in it.
  uint64_t waits() const { return waits_; }
  void CountWait() const { ++waits_; }

  // The stream's simulated time in seconds; only its own jobs may call this.
  double now() const { return now_; }
  void AdvanceTo(double time) { now_ = std::max(now_, time); }

  // While the stream is held, it begins no further job.
  void Hold(bool hold);
  uint64_t done() const;

 private:
  struct Entry {
    Job job;
    double seconds = 0;
  };

  void Run();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> jobs_;
  uint64_t pushed_ = 0;
  uint64_t done_ = 0;
  bool held_ = false;
  std::string error_;
  mutable std::atomic<uint64_t> waits_{0};
  // Used only by the stream's thread.
  double now_ = 0;
};

// Events as c10's device interface defines them: each Record() makes a new version of the event,
// and a wait is for the version that is current when the wait is requested.
class Event {
 public:
  void Record(Queue& queue);
  // Jobs that are pushed to `queue` from now on wait for the event.
  void Block(Queue& queue) const;
  bool done() const;
  void Synchronize() const;

 private:
  // Queues refer to the state, so it outlives the event.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    // The simulated time at which a stream reached the event, by version.
    std::map<uint64_t, double> times;

    bool Passed(uint64_t version) const { return version == 0 || times.count(version) > 0; }
  };

  void CountWait() const;

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  uint64_t version_ = 0;
  const Queue* recorded_on_ = nullptr;
};

// The streams of the pretend device, and the current device and stream of each thread.

inline constexpr c10::DeviceType kPretend = c10::DeviceType::PrivateUse1;

// Must be called before anything else here. Stream 0 of each device is its default stream.
void MakeDevices(int count);
int DeviceCount();

// These four get and set the current device and stream of the calling thread.
c10::DeviceIndex CurrentDevice();
c10::DeviceIndex ExchangeDevice(c10::DeviceIndex device);
c10::Stream CurrentStream(c10::DeviceIndex device);
c10::Stream ExchangeStream(c10::Stream stream);

c10::Stream NewStream(c10::DeviceIndex device);
Queue& QueueOf(const c10::Stream& stream);
Queue& CurrentQueue(c10::DeviceIndex device);
void SynchronizeDevice(c10::DeviceIndex device);
// Returns how often the host has waited for one of the device's streams, or polled one.
uint64_t HostWaits(c10::DeviceIndex device);

// Makes `device` current while the object lives.
class DeviceSwitch {
 public:
  explicit DeviceSwitch(c10::DeviceIndex device) : before_(ExchangeDevice(device)) {}
  ~DeviceSwitch() { ExchangeDevice(before_); }
  DeviceSwitch(const DeviceSwitch&) = delete;
  DeviceSwitch& operator=(const DeviceSwitch&) = delete;

 private:
  const c10::DeviceIndex before_;
};

// Memory of the pretend device. Tensors hold addresses that can be neither read nor written, so
// that an access by the host raises SIGSEGV; the device's threads map the same pages at another
// address. New and freed memory is filled with 0xff, which is NaN in every floating type, in the
// order of the streams that used it.

// Allocates `bytes` bytes, whose first use is on the current stream of the current device.
c10::DataPtr AllocateOnDevice(size_t bytes);
c10::Allocator* DeviceAllocator();
// Allocates host memory that the device can copy to and from asynchronously.
c10::Allocator* PinnedAllocator();

// Returns the address at which the device's threads can access `device_pointer`. Throws for any
// pointer that is not device memory.
char* AsDeviceSeesIt(const void* device_pointer);
bool IsPinned(const void* pointer);
// Records that `queue` uses the memory too, as record_stream does: it is not freed before the jobs
// pushed there so far are done.
void UsedOn(const void* device_pointer, Queue& queue);

// Returns the bytes that are allocated on all devices.
size_t LiveBytes();

// Implements c10's device interface (devices, streams, events) for the pretend device.

// Must be called once, after MakeDevices().
void RegisterGuard();

}  // namespace cadre::pretend

#endif  // CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_QUEUE_H_
