#include "cadre/torch/device_links.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "cadre/nccl/connect.h"
#include "cadre/status_macros.h"

namespace cadre::nn {
namespace {

constexpr char kBackendVariable[] = "CADRE_DEVICE_BACKEND";

// "" is whatever can be.
Result<std::string> WantedBackend() {
  const char* const variable = std::getenv(kBackendVariable);
  const std::string backend = variable == nullptr ? "" : variable;
  if (backend.empty() || backend == "nccl" || backend == "host") return backend;
  return InvalidArgumentError(std::string(kBackendVariable) + " is '" + backend +
                              "'; it may be nccl or host, or not be set");
}

bool MeansThatThereIsNone(const Status& status) {
  return status.code() == StatusCode::kUnimplemented || status.code() == StatusCode::kNotFound ||
         status.code() == StatusCode::kFailedPrecondition;
}

void SayThatTheHostIsTheWay(const Communicator& host, torch::Device device, const Status& status) {
  // Devices without NCCL were never meant to have it.
  if (host.rank() != 0 || !device.is_cuda()) return;
  std::fprintf(stderr, "cadre: gradients on %s go through the host's memory: %s\n",
               device.str().c_str(), std::string(status.message()).c_str());
}

}  // namespace

Result<std::unique_ptr<Communicator>> ConnectByNccl(Communicator& host, DeviceStream& stream) {
  const torch::Device device = stream.device();
  if (!device.is_cuda()) {
    return UnimplementedError("NCCL connects devices of CUDA's only, and not " + device.str());
  }
  nccl::NcclOptions options;
  options.name = "gradients on " + device.str();
  options.device = device.index();
  CADRE_ASSIGN_OR_RETURN(options.stream, stream.CudaHandle());
  return nccl::ConnectNccl(host, options);
}

Result<std::unique_ptr<DeviceLinks>> DeviceLinks::Connect(Communicator& host,
                                                          const std::vector<torch::Tensor>& tensors,
                                                          const ConnectDevice& connect) {
  CADRE_ASSIGN_OR_RETURN(const std::string backend, WantedBackend());
  auto links = std::make_unique<DeviceLinks>();
  links->alone_ = connect != nullptr && host.size() == 1;
  for (const torch::Tensor& tensor : tensors) {
    const torch::Device device = tensor.device();
    if (device.is_cpu() || links->Find(device) != nullptr) continue;
    DeviceStream& stream = links->StreamOf(device);
    if (connect == nullptr || links->alone_ || backend == "host") continue;
    Result<std::unique_ptr<Communicator>> communicator = connect(host, stream);
    if (communicator.ok()) {
      links->links_.back().communicator = *std::move(communicator);
      continue;
    }
    if (backend == "nccl" || !MeansThatThereIsNone(communicator.status())) {
      return communicator.status();
    }
    SayThatTheHostIsTheWay(host, device, communicator.status());
  }
  return links;
}

const DeviceLinks::Link* DeviceLinks::Find(torch::Device device) const {
  for (const Link& link : links_) {
    if (link.stream->device() == device) return &link;
  }
  return nullptr;
}

const DeviceLinks::Link& DeviceLinks::FindOrAdd(torch::Device device) {
  const Link* const link = Find(device);
  if (link != nullptr) return *link;
  links_.push_back(
      {std::make_unique<DeviceStream>(device), std::make_unique<DeviceStream>(device), nullptr});
  return links_.back();
}

DeviceStream& DeviceLinks::StreamOf(torch::Device device) { return *FindOrAdd(device).stream; }

DeviceStream& DeviceLinks::CheckStreamOf(torch::Device device) { return *FindOrAdd(device).checks; }

bool DeviceLinks::Reduces(torch::Device device) const {
  return !device.is_cpu() && (alone_ || CommunicatorOf(device) != nullptr);
}

Communicator* DeviceLinks::CommunicatorOf(torch::Device device) const {
  const Link* const link = Find(device);
  return link == nullptr ? nullptr : link->communicator.get();
}

void DeviceLinks::CurrentWaits() const {
  for (const Link& link : links_) link.stream->CurrentWaits();
}

void DeviceLinks::Abort() {
  for (const Link& link : links_) {
    if (link.communicator != nullptr) link.communicator->Abort();
  }
}

}  // namespace cadre::nn
