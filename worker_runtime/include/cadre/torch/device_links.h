// The communicators between the ranks' devices, by which gradients are reduced without the host.
#ifndef CADRE_TORCH_DEVICE_LINKS_H_
#define CADRE_TORCH_DEVICE_LINKS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/torch/device_stream.h"
#include "torch/types.h"

namespace cadre::nn {

// Collective: connects the device of `stream` with those of the other ranks of `host`. Buffers are
// the device's memory, and calls put their operation on the stream before they return.
// UNIMPLEMENTED, NOT_FOUND, FAILED_PRECONDITION, on all ranks alike: these devices cannot be
// connected, and gradients go through the host.
using ConnectDevice =
    std::function<Result<std::unique_ptr<Communicator>>(Communicator& host, DeviceStream& stream)>;

// By NCCL; UNIMPLEMENTED for devices that are not CUDA's.
Result<std::unique_ptr<Communicator>> ConnectByNccl(Communicator& host, DeviceStream& stream);

// Collective. FAILED_PRECONDITION on all ranks alike: CADRE_ENCRYPT says that what goes between
// machines is encrypted, the ranks are on several, and nothing encrypts what devices send.
// `machine` is this rank's, by any name that is equal for those on the same one.
Status CheckDevicesMayLeave(Communicator& host, const std::string& machine);

// A stream for each device of a model, and a communicator where there is one. Not thread safe, but
// for Abort().
class DeviceLinks {
 public:
  // Collective where `connect` is not null: in the order in which the tensors name their devices,
  // which is the same on all ranks. What cannot be connected is told on standard error, or is the
  // error where CADRE_DEVICE_BACKEND is "nccl"; with "host" nothing is connected. Ranks that
  // encrypt (CADRE_ENCRYPT) connect no devices of several machines, unless that is "nccl".
  // `why_not` is told, too, where `connect` is null and there is something to tell.
  static Result<std::unique_ptr<DeviceLinks>> Connect(Communicator& host,
                                                      const std::vector<torch::Tensor>& tensors,
                                                      const ConnectDevice& connect,
                                                      std::string_view why_not = "");

  DeviceStream& StreamOf(torch::Device device);
  // For what looks at gradients before they are sent, so that it does not hold up those before.
  DeviceStream& CheckStreamOf(torch::Device device);
  // Whether gradients there need not go through the host.
  bool Reduces(torch::Device device) const;
  // Null: there is one rank, or the host is the way.
  Communicator* CommunicatorOf(torch::Device device) const;

  // What the calling thread's current streams are given from now on waits for all of ours.
  void CurrentWaits() const;
  void Abort();

 private:
  struct Link {
    std::unique_ptr<DeviceStream> stream;
    std::unique_ptr<DeviceStream> checks;
    // After the stream that it runs on.
    std::unique_ptr<Communicator> communicator;
  };

  const Link* Find(torch::Device device) const;
  const Link& FindOrAdd(torch::Device device);

  // Whether there is one rank, whose gradients need no reduction.
  bool alone_ = false;
  std::vector<Link> links_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_DEVICE_LINKS_H_
