// Streams and events of any device by libtorch's own interface: no header of a device is needed.
#ifndef CADRE_TORCH_DEVICE_STREAM_H_
#define CADRE_TORCH_DEVICE_STREAM_H_

#include <chrono>
#include <memory>
#include <optional>

#include "c10/core/Event.h"
#include "c10/core/Stream.h"
#include "c10/core/StreamGuard.h"
#include "cadre/result.h"
#include "torch/types.h"

namespace cadre::nn {

// How long what devices were given last has before it is given up.
inline constexpr std::chrono::nanoseconds kLastDeviceWait = std::chrono::seconds(5);

// A point in a stream. One of the host is always reached.
class DevicePoint {
 public:
  DevicePoint() = default;
  explicit DevicePoint(c10::Stream stream);

  // Does not block; throws what went wrong on the device.
  bool reached() const;
  // What is queued on that stream from now on waits for it.
  void Block(c10::Stream stream);

 private:
  std::optional<c10::Event> event_;
};

// A stream beside those of the computation, for copies and collectives. On the host: nothing, since
// nothing there is asynchronous. One thread at a time.
class DeviceStream {
 public:
  explicit DeviceStream(torch::Device device);

  torch::Device device() const { return device_; }
  // Of CUDA: a cudaStream_t, whose null is valid. INVALID_ARGUMENT: the device is another.
  Result<void*> CudaHandle() const;
  // What the calling thread's operators are queued on; nullopt on the host.
  std::optional<c10::Stream> Current() const;

  // What is queued here from now on waits for all that `other` has been given.
  void WaitFor(c10::Stream other);
  // And the other way round, for the calling thread's current stream.
  void CurrentWaits() const;
  DevicePoint Here() const;
  // The host waits for all that this has been given.
  void Synchronize() const;
  // The tensor's memory is used here, too: it stays until that is done.
  void Uses(const torch::Tensor& tensor) const;
  // And the other way round: by what the calling thread's current stream is given.
  void CurrentUses(const torch::Tensor& tensor) const;

  // While it lives, the calling thread's operators are queued here.
  class Scope {
   public:
    explicit Scope(const DeviceStream& stream);

   private:
    std::optional<c10::StreamGuard> guard_;
  };

 private:
  const torch::Device device_;
  std::optional<c10::Stream> stream_;
};

// Lets `device` copy to and from that memory of the host by itself, until the result, which keeps
// the memory, is gone. Null: it cannot.
std::shared_ptr<void> Pin(torch::Device device, std::shared_ptr<void> owner, void* memory,
                          size_t bytes);

// Memory of the host that `device` copies to and from while the host goes on, where it can.
torch::Tensor EmptyPinned(torch::Device device, torch::IntArrayRef sizes, torch::ScalarType type);

}  // namespace cadre::nn

#endif  // CADRE_TORCH_DEVICE_STREAM_H_
