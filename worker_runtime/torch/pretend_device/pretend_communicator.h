// Collectives between pretend devices, in place of NCCL: in the order of a stream, while the host
// goes on.
#ifndef CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_PRETEND_COMMUNICATOR_H_
#define CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_PRETEND_COMMUNICATOR_H_

#include <memory>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/torch/device_stream.h"

namespace cadre::pretend {

// A nn::ConnectDevice: all-reduces, reductions, broadcasts, gathers and reduce-scatters of even
// parts. They go by a part of `host` of their own, which the stream's thread waits for, as a device
// does for its peers: in the device's own time, too (costs.h). The stream must outlive it.
Result<std::unique_ptr<Communicator>> ConnectPretendDevices(Communicator& host,
                                                            nn::DeviceStream& stream);

}  // namespace cadre::pretend

#endif  // CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_PRETEND_COMMUNICATOR_H_
