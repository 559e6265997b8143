#include "worker_runtime/torch/pretend_device/guard.h"

#include "ATen/CPUGeneratorImpl.h"
#include "c10/core/Allocator.h"
#include "c10/core/impl/DeviceGuardImplInterface.h"
#include "torch/version.h"
#include "worker_runtime/torch/pretend_device/memory.h"
#include "worker_runtime/torch/pretend_device/queue.h"
#include "worker_runtime/torch/pretend_device/streams.h"
#if TORCH_VERSION_MAJOR >= 2
#include "ATen/detail/PrivateUse1HooksInterface.h"
#endif

namespace cadre::pretend {
namespace {

c10::DeviceIndex IndexOf(c10::Device device) {
  return device.index() < 0 ? CurrentDevice() : device.index();
}

Event* AsEvent(void* event) { return static_cast<Event*>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kPretend; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kPretend, ExchangeDevice(IndexOf(device))};
  }
  c10::Device getDevice() const override { return {kPretend, CurrentDevice()}; }
  void setDevice(c10::Device device) const override { ExchangeDevice(IndexOf(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    ExchangeDevice(IndexOf(device));
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(DeviceCount());
  }

  c10::Stream getStream(c10::Device device) const noexcept override {
    return CurrentStream(IndexOf(device));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(kPretend, IndexOf(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    return NewStream(IndexOf(device));
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return ExchangeStream(stream);
  }
  bool queryStream(const c10::Stream& stream) const override { return QueueOf(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    QueueOf(stream).Synchronize();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    UsedOn(data.get(), QueueOf(stream));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new Event;
    AsEvent(*event)->Record(QueueOf(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) AsEvent(event)->Block(QueueOf(stream));
  }
  bool queryEvent(void* event) const override { return event == nullptr || AsEvent(event)->done(); }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete AsEvent(event);
  }

  // Not in every release, so without `override`.
  void synchronizeEvent(void* event) const {
    if (event != nullptr) AsEvent(event)->Synchronize();
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/ = 0) const {
    return NewStream(IndexOf(device));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const { SynchronizeDevice(device); }
  void* getStreamNativeHandle(const c10::Stream stream) const { return &QueueOf(stream); }
};

#if TORCH_VERSION_MAJOR >= 2
struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return DeviceCount() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(DeviceCount());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { ExchangeDevice(device); }
  c10::DeviceIndex getCurrentDevice() const override { return CurrentDevice(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return ExchangeDevice(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return ExchangeDevice(device);
  }
  bool isPinnedPtr(const void* data) const override { return IsPinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return PinnedAllocator(); }
  // torch::manual_seed() asks for one of every device.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex /*device*/) const override {
    static const auto* const generator = new at::Generator(at::detail::createCPUGenerator());
    return *generator;
  }
};
#endif

}  // namespace

void RegisterGuard() {
  c10::SetAllocator(kPretend, DeviceAllocator());
  const c10::impl::DeviceGuardImplRegistrar registrar(kPretend, new Guard);
#if TORCH_VERSION_MAJOR >= 2
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  // Without a name of its own at::getAccelerator() does not see the device.
  c10::register_privateuse1_backend("pretend");
#endif
}

}  // namespace cadre::pretend
