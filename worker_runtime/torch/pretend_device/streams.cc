#include "worker_runtime/torch/pretend_device/streams.h"

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

namespace cadre::pretend {
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

}  // namespace cadre::pretend
