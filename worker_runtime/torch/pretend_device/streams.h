// The streams of the pretend device, and which of them is current in a thread.
#ifndef CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_STREAMS_H_
#define CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_STREAMS_H_

#include <cstdint>

#include "c10/core/Device.h"
#include "c10/core/Stream.h"
#include "worker_runtime/torch/pretend_device/queue.h"

namespace cadre::pretend {

inline constexpr c10::DeviceType kPretend = c10::DeviceType::PrivateUse1;

// Before anything else; stream 0 of each is its default one.
void MakeDevices(int count);
int DeviceCount();

// Of the calling thread.
c10::DeviceIndex CurrentDevice();
c10::DeviceIndex ExchangeDevice(c10::DeviceIndex device);
c10::Stream CurrentStream(c10::DeviceIndex device);
c10::Stream ExchangeStream(c10::Stream stream);

c10::Stream NewStream(c10::DeviceIndex device);
Queue& QueueOf(const c10::Stream& stream);
Queue& CurrentQueue(c10::DeviceIndex device);
void SynchronizeDevice(c10::DeviceIndex device);
// How often the host has waited for one of its streams, or asked whether one is done.
uint64_t HostWaits(c10::DeviceIndex device);

// While it lives, `device` is current.
class DeviceSwitch {
 public:
  explicit DeviceSwitch(c10::DeviceIndex device) : before_(ExchangeDevice(device)) {}
  ~DeviceSwitch() { ExchangeDevice(before_); }
  DeviceSwitch(const DeviceSwitch&) = delete;
  DeviceSwitch& operator=(const DeviceSwitch&) = delete;

 private:
  const c10::DeviceIndex before_;
};

}  // namespace cadre::pretend

#endif  // CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_STREAMS_H_
