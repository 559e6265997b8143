// Streams and events of any device through libtorch's generic interface, without a device's
// headers, and how the ranks' devices are connected.
#ifndef CADRE_TORCH_DEVICE_STREAM_H_
#define CADRE_TORCH_DEVICE_STREAM_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "c10/core/Event.h"
#include "c10/core/Stream.h"
#include "c10/core/StreamGuard.h"
#include "cadre/communicator.h"
#include "cadre/result.h"
#include "torch/types.h"

namespace cadre::nn {

// How long to wait for the last work submitted to devices before giving up.
inline constexpr std::chrono::nanoseconds kLastDeviceWait = std::chrono::seconds(5);

// A point in a stream. A point of the host is always reached.
class DevicePoint {
 public:
  DevicePoint() = default;
  explicit DevicePoint(c10::Stream stream);

  // Does not block; throws errors of the device.
  bool reached() const;
  // Makes later work on that stream wait for this point.
  void Block(c10::Stream stream);

 private:
  std::optional<c10::Event> event_;
};

// A stream separate from those of the computation, for copies and collectives. On the host it does
// nothing, since nothing there is asynchronous. Used by one thread at a time.
class DeviceStream {
 public:
  explicit DeviceStream(torch::Device device);

  torch::Device device() const { return device_; }
  // The cudaStream_t of a CUDA device; null is valid. INVALID_ARGUMENT: not a CUDA device.
  Result<void*> CudaHandle() const;
  // The stream on which the calling thread's operators are queued; nullopt on the host.
  std::optional<c10::Stream> Current() const;

  // Makes later work on this stream wait for all work submitted to `other` so far.
  void WaitFor(c10::Stream other);
  // Makes later work on the calling thread's current stream wait for this one.
  void CurrentWaits() const;
  DevicePoint Here() const;
  // Blocks the host until all work submitted to this stream is done.
  void Synchronize() const;
  // Marks the tensor's memory as used on this stream, so that it is kept until that work is done.
  void Uses(const torch::Tensor& tensor) const;
  // Likewise, as used on the calling thread's current stream.
  void CurrentUses(const torch::Tensor& tensor) const;

  // While it lives, the calling thread's operators are queued on this stream.
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

// Collective: connects the device of `stream` with those of the other ranks of `host`. Buffers are
// device memory, and calls put their operation on the stream before they return. UNIMPLEMENTED,
// NOT_FOUND, FAILED_PRECONDITION, on all ranks alike: these devices cannot be connected, and
// gradients go through the host.
using ConnectDevice =
    std::function<Result<std::unique_ptr<Communicator>>(Communicator& host, DeviceStream& stream)>;

// Connects by NCCL; UNIMPLEMENTED for devices other than CUDA's.
Result<std::unique_ptr<Communicator>> ConnectByNccl(Communicator& host, DeviceStream& stream);

// Pins that host memory, so that `device` copies to and from it asynchronously, until the result,
// which keeps the memory alive, is destroyed. Null: it cannot.
std::shared_ptr<void> Pin(torch::Device device, std::shared_ptr<void> owner, void* memory,
                          size_t bytes);

// Returns host memory, pinned if possible, which `device` copies to and from asynchronously.
torch::Tensor EmptyPinned(torch::Device device, torch::IntArrayRef sizes, torch::ScalarType type);

}  // namespace cadre::nn

#endif  // CADRE_TORCH_DEVICE_STREAM_H_
