#include "worker_runtime/nccl/device_memory.h"

#ifdef CADRE_WITH_NCCL

#include <algorithm>
#include <utility>

#include "worker_runtime/cuda/device.h"

namespace cadre::nccl {
namespace {

Result<std::shared_ptr<void>> Allocate(const NcclApi& api, size_t bytes) {
  void* data = nullptr;
  if (api.MemAlloc != nullptr && api.MemFree != nullptr &&
      api.MemAlloc(&data, bytes) == ncclSuccess) {
    return std::shared_ptr<void>(data, [&api](void* memory) { api.MemFree(memory); });
  }
  // Needs more of the driver than plain memory does, so the latter may still work; its error is
  // the one that says what is wrong.
  return cuda::AllocateOnCudaDevice(bytes);
}

// Takes the memory out of NCCL's books before it is freed.
class Registered {
 public:
  Registered(std::shared_ptr<NcclHandle> handle, std::shared_ptr<void> memory, void* registration)
      : handle_(std::move(handle)), memory_(std::move(memory)), registration_(registration) {}
  ~Registered() { handle_->Deregister(registration_); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

 private:
  const std::shared_ptr<NcclHandle> handle_;
  const std::shared_ptr<void> memory_;
  void* const registration_;
};

}  // namespace

Result<std::shared_ptr<void>> AllocateForNccl(std::shared_ptr<NcclHandle> handle, size_t bytes,
                                              MonoTime deadline) {
  const size_t size = std::max<size_t>(bytes, 1);
  Result<std::shared_ptr<void>> memory = Allocate(handle->api(), size);
  if (!memory.ok()) return memory;
  const Result<void*> registration = handle->Register(memory->get(), size, deadline);
  // Unregistered memory works as well, with a copy.
  if (!registration.ok()) return memory;
  void* const data = memory->get();
  auto owner = std::make_shared<Registered>(std::move(handle), *std::move(memory), *registration);
  return std::shared_ptr<void>(std::move(owner), data);
}

}  // namespace cadre::nccl

#endif  // CADRE_WITH_NCCL
