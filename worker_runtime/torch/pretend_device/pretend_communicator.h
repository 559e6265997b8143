// Collectives between pretend devices, in place of NCCL: they run in the order of a stream, while
// the host goes on.
#ifndef CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_PRETEND_COMMUNICATOR_H_
#define CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_PRETEND_COMMUNICATOR_H_

#include <memory>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/torch/device_stream.h"

namespace cadre::pretend {

// Implements nn::ConnectDevice: all-reduce, reduce, broadcast, all-gather and reduce-scatter of
// even parts. They use a communicator split from `host`; the stream's thread waits for it as a
// device waits for its peers, also in simulated time (queue.h). The stream must outlive the
// communicator.
Result<std::unique_ptr<Communicator>> ConnectPretendDevices(Communicator& host,
                                                            nn::DeviceStream& stream);

}  // namespace cadre::pretend

#endif  // CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_PRETEND_COMMUNICATOR_H_
