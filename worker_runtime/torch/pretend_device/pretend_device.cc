// libtorch's operators on the pretend device: those that it must implement, which allocate, copy
// and make views; and the fallback for all others.
#include "worker_runtime/torch/pretend_device/pretend_device.h"

#include <cstddef>
#include <cstring>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/EmptyTensor.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"
#include "ATen/ops/_reshape_alias_native.h"
#include "ATen/ops/as_strided_native.h"
#include "ATen/ops/set_native.h"
#include "ATen/ops/view_native.h"
#include "gtest/gtest.h"
#include "torch/library.h"
#include "torch/version.h"
#if TORCH_VERSION_MAJOR >= 2
#include "ATen/autocast_mode.h"
#endif
#include "ATen/core/Tensor.h"
#include "worker_runtime/torch/pretend_device/optional.h"
#include "worker_runtime/torch/pretend_device/queue.h"

namespace cadre::pretend {

bool IsOnDevice(const at::Tensor& tensor);
// Returns the bytes of the tensor's elements, or 0 if it is not on a pretend device.
size_t BytesOnDevice(const at::Tensor& tensor);
// Returns a CPU tensor over the device's memory as the device's threads see it; it does not own the
// memory.
at::Tensor AsDeviceSeesIt(const at::Tensor& tensor);
// Implements aten::_copy_from, between a device and the host or between two devices.
at::Tensor CopyFrom(const at::Tensor& source, const at::Tensor& target, bool non_blocking);

// Runs every operator that the pretend device does not implement with the CPU's kernel.
//
// The CPU's kernel first runs at once on zeros of the same shapes: its results give sizes, strides,
// type and aliasing. The real run is then queued on the current stream, and the host goes on. An
// operator whose result's shape depends on the data, or whose result is a host value, waits for the
// stream.
void Fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

namespace {

using at::Tensor;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::DeviceIndex IndexOf(Optional<c10::Device> device) {
  return !device || device->index() < 0 ? CurrentDevice() : device->index();
}

Tensor Empty(at::IntArrayRef sizes, Optional<at::ScalarType> type, Optional<at::Layout>,
             Optional<c10::Device> device, Optional<bool>, Optional<at::MemoryFormat> format) {
  const DeviceSwitch on(IndexOf(device));
  return at::detail::empty_generic(sizes, DeviceAllocator(), kKeys, c10::dtype_or_default(type),
                                   format);
}

Tensor EmptyStrided(at::IntArrayRef sizes, at::IntArrayRef strides, Optional<at::ScalarType> type,
                    Optional<at::Layout>, Optional<c10::Device> device, Optional<bool>) {
  const DeviceSwitch on(IndexOf(device));
  return at::detail::empty_strided_generic(sizes, strides, DeviceAllocator(), kKeys,
                                           c10::dtype_or_default(type));
}

at::Scalar LocalScalar(const Tensor& tensor) {
  const Tensor host = at::empty({}, at::TensorOptions().dtype(tensor.dtype()));
  CopyFrom(tensor, host, /*non_blocking=*/false);
  return host.item();
}

Tensor CopyFromAndResize(const Tensor& source, const Tensor& target) {
  target.resize_(source.sizes());
  CopyFrom(source, target, /*non_blocking=*/false);
  return target;
}

const Tensor& Resize(const Tensor& tensor, at::IntArrayRef sizes, Optional<at::MemoryFormat>) {
  const int64_t elements = tensor.storage_offset() + c10::multiply_integers(sizes);
  const size_t bytes = static_cast<size_t>(elements) * tensor.dtype().itemsize();
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) {
    const DeviceSwitch on(tensor.device().index());
    c10::DataPtr larger = AllocateOnDevice(bytes);
    if (storage->nbytes() > 0) {
      CurrentQueue(CurrentDevice())
          .Push([to = AsDeviceSeesIt(larger.get()),
                 from = AsDeviceSeesIt(tensor.storage().data_ptr().get()),
                 count = storage->nbytes()] { std::memcpy(to, from, count); });
    }
    storage->set_data_ptr_noswap(std::move(larger));
    storage->set_nbytes(bytes);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

Tensor AsStrided(const Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides,
                 Optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, sizes, strides, offset);
}

// Lets Module::to(device) keep the parameters' tensors and replace their content.
bool HasCompatibleShallowCopyType(const Tensor&, const Tensor&) { return true; }

bool IsPinnedTensor(const Tensor& tensor, Optional<c10::Device>) {
  return IsPinned(tensor.data_ptr());
}

Tensor PinMemoryOf(const Tensor& tensor, Optional<c10::Device>) { return PinMemory(tensor); }

void RecordStream(Tensor& tensor, c10::Stream stream) {
  UsedOn(tensor.storage().data_ptr().get(), QueueOf(stream));
}

#if TORCH_VERSION_MAJOR < 2
// Later releases have an autograd fallback for this key.
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
#else
// Registers autocast as a device's own library does: these operators run in 16 bits, all others
// fall through.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp);
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp);
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp);
}
#endif

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&Fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &Empty);
  m.impl("empty_strided", &EmptyStrided);
  m.impl("_copy_from", &CopyFrom);
  m.impl("_copy_from_and_resize", &CopyFromAndResize);
  m.impl("_local_scalar_dense", &LocalScalar);
  m.impl("resize_", &Resize);
  m.impl("as_strided", &AsStrided);
  m.impl("view", static_cast<Tensor (*)(const Tensor&, at::IntArrayRef)>(&at::native::view));
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("set_.source_Storage", static_cast<Tensor& (*)(Tensor&, at::Storage)>(&at::native::set_));
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("_has_compatible_shallow_copy_type", &HasCompatibleShallowCopyType);
  m.impl("is_pinned", &IsPinnedTensor);
  m.impl("_pin_memory", &PinMemoryOf);
  m.impl("record_stream", &RecordStream);
}

}  // namespace

void Install(int devices) {
  // The device must be there before the first backward pass: 1.13 counts autograd's threads then.
  static const bool installed = [devices] {
    MakeDevices(devices);
    RegisterGuard();
    return true;
  }();
  (void)installed;
}

const ::testing::Environment* InstallBeforeTests(int devices) {
  class Devices : public ::testing::Environment {
   public:
    explicit Devices(int devices) : devices_(devices) {}
    void SetUp() override { Install(devices_); }

   private:
    const int devices_;
  };
  return ::testing::AddGlobalTestEnvironment(new Devices(devices));
}

c10::Device Device(int index) { return {kPretend, static_cast<c10::DeviceIndex>(index)}; }

at::Tensor PinMemory(const at::Tensor& tensor) {
  return at::Tensor(at::detail::empty_strided_generic(
                        tensor.sizes(), tensor.strides(), PinnedAllocator(),
                        c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.scalar_type()))
      .copy_(tensor);
}

void Hold(c10::Stream stream, bool hold) { QueueOf(stream).Hold(hold); }

uint64_t JobsDone(c10::Stream stream) { return QueueOf(stream).done(); }

std::shared_future<double> TimeAt(c10::Stream stream) {
  const auto time = std::make_shared<std::promise<double>>();
  Queue& queue = QueueOf(stream);
  queue.Push([time, &queue] { time->set_value(queue.now()); });
  return time->get_future().share();
}

uint64_t HostWaits(c10::Device device) { return HostWaits(device.index()); }

namespace {

using torch::jit::Stack;

at::TensorOptions OnHost(const Tensor& tensor) { return at::TensorOptions().dtype(tensor.dtype()); }

// Returns `value` with each tensor in it replaced by function(tensor).
template <typename Function>
c10::IValue WithTensors(const c10::IValue& value, const Function& function) {
  if (value.isTensor()) return function(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> result;
    for (const Tensor& tensor : value.toTensorVector()) result.push_back(function(tensor));
    return result;
  }
  if (value.isOptionalTensorList()) {
    c10::List<Optional<Tensor>> result;
    for (const Optional<Tensor>& tensor : value.toOptionalTensorVector()) {
      result.push_back(tensor ? Optional<Tensor>(function(*tensor)) : Optional<Tensor>());
    }
    return result;
  }
  if (value.isDevice() && value.toDevice().type() == kPretend) return c10::Device(c10::kCPU);
  return value;
}

// One call of an operator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack) : op_(op), stack_(*stack) {
    const size_t count = op.schema().arguments().size();
    arguments_.assign(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
    stack->erase(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  }

  void Run() {
    Stack zeros = Zeros();
    TORCH_CHECK(device_ && device_->type() == kPretend, "pretend device: no device for ",
                op_.schema());
    queue_ = &CurrentQueue(device_->index() < 0 ? CurrentDevice() : device_->index());
    if (NeedsData()) return RunAtOnce();
    op_.callBoxed(&zeros);
    // The operator resized an out= argument.
    for (const auto& [tensor, zero] : zeros_) {
      if (tensor.sizes() != zero.sizes()) tensor.resize_(zero.sizes());
    }
    Enqueue(zeros);
  }

 private:
  // A tensor in the device's memory, and the CPU tensor that is to be copied there.
  using Back = std::pair<Tensor, Tensor>;

  bool IsOut(size_t i) const {
    const auto& argument = op_.schema().arguments()[i];
    return argument.kwarg_only() && argument.alias_info() != nullptr &&
           argument.alias_info()->isWrite();
  }

  Stack Zeros() {
    Stack result;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (arguments_[i].isDevice() && !device_) device_ = arguments_[i].toDevice();
      result.push_back(WithTensors(arguments_[i], [&](const Tensor& tensor) {
        if (!tensor.defined()) return tensor;
        if (!IsOnDevice(tensor)) return tensor.clone();
        device_ = tensor.device();
        Tensor zero =
            IsOut(i) ? at::empty({0}, OnHost(tensor))
                     : at::empty_strided(tensor.sizes(), tensor.strides(), OnHost(tensor)).zero_();
        zeros_.emplace_back(tensor, zero);
        if (!IsOut(i)) read_.push_back(tensor);
        return zero;
      }));
    }
    return result;
  }

  // Returns the arguments that the device computes with. An out= argument goes in as an empty
  // tensor and is copied back, because some kernels resize it on the way.
  Stack Real(std::vector<Back>& backs) const {
    Stack result;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      result.push_back(WithTensors(arguments_[i], [&](const Tensor& tensor) {
        if (!tensor.defined()) return tensor;
        if (!IsOnDevice(tensor)) return tensor.clone();
        const Tensor seen = AsDeviceSeesIt(tensor);
        if (!IsOut(i)) return seen;
        backs.emplace_back(seen, at::empty({0}, OnHost(tensor)));
        return backs.back().second;
      }));
    }
    return result;
  }

  bool NeedsData() const {
    static const auto* const sized_by_data =
        new std::set<std::string>{"aten::nonzero", "aten::masked_select", "aten::_unique2"};
    if (sized_by_data->count(op_.schema().name()) > 0) return true;
    for (const auto& result : op_.schema().returns()) {
      const auto kind = result.type()->kind();
      if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType) return true;
    }
    return false;
  }

  void RunAtOnce() {
    queue_->Synchronize();
    std::vector<Back> backs;
    Stack real = Real(backs);
    op_.callBoxed(&real);
    for (const c10::IValue& result : real) {
      const bool moves = result.isTensor() && result.toTensor().defined();
      stack_.push_back(moves ? c10::IValue(result.toTensor().to(*device_)) : result);
    }
  }

  // Returns the result for which `zero` stands; `copied_to` is where the real result must be
  // copied, or undefined if the kernel writes there itself.
  Tensor Place(const Tensor& zero, Tensor& copied_to) const {
    if (!zero.defined()) return zero;
    for (const auto& [tensor, argument] : zeros_) {
      if (argument.is_same(zero)) return tensor;  // in place, or out=
    }
    for (const auto& [tensor, argument] : zeros_) {
      if (zero.numel() == 0 ||
          zero.storage().unsafeGetStorageImpl() != argument.storage().unsafeGetStorageImpl()) {
        continue;
      }
      return at::native::as_strided_tensorimpl(tensor, zero.sizes(), zero.strides(),
                                               tensor.storage_offset() + zero.storage_offset());
    }
    Tensor made = at::empty_strided(zero.sizes(), zero.strides(), OnHost(zero).device(*device_));
    copied_to = AsDeviceSeesIt(made);
    return made;
  }

  // Returns what the call costs, whose results are on the stack. Views cost nothing.
  double Cost() const {
    size_t bytes = 0;
    for (const Tensor& tensor : read_) bytes += BytesOnDevice(tensor);
    const size_t results = op_.schema().returns().size();
    bool computes = results == 0;
    Tensor last_result;
    for (size_t i = stack_.size() - results; i < stack_.size(); ++i) {
      WithTensors(stack_[i], [&](const Tensor& result) {
        bytes += BytesOnDevice(result);
        computes = computes || !IsView(result);
        last_result = result;
        return result;
      });
    }
    if (!computes) return 0;
    static const auto* const products =
        new std::set<std::string>{"aten::mm", "aten::addmm", "aten::bmm"};
    if (products->count(op_.schema().name()) == 0) return GetCosts().OfOperator(bytes);
    // Each element of the product takes as many multiplications as the last factor has rows.
    const int64_t terms = read_.back().size(-2);
    return GetCosts().OfOperator(bytes, static_cast<double>(last_result.numel() * terms));
  }

  // Whether a result is a view of an argument's memory.
  bool IsView(const Tensor& result) const {
    bool shares = false;
    for (const auto& [argument, zero] : zeros_) {
      if (argument.is_same(result)) return false;
      shares = shares || (result.defined() && argument.storage().unsafeGetStorageImpl() ==
                                                  result.storage().unsafeGetStorageImpl());
    }
    return shares;
  }

  void Enqueue(const Stack& zeros) {
    auto backs = std::make_shared<std::vector<Back>>();
    auto real = std::make_shared<Stack>(Real(*backs));
    std::vector<std::vector<Tensor>> places;  // by result, and by tensor in it
    for (const c10::IValue& zero : zeros) {
      std::vector<Tensor>& result = places.emplace_back();
      stack_.push_back(WithTensors(
          zero, [&](const Tensor& tensor) { return Place(tensor, result.emplace_back()); }));
    }
    const auto job = [op = op_, real, backs, places] {
      const at::AutoDispatchBelowADInplaceOrView below;
      op.callBoxed(real.get());
      for (const auto& [place, value] : *backs) place.copy_(value);
      for (size_t r = 0; r < places.size(); ++r) {
        const c10::IValue& result = (*real)[r];
        const std::vector<Tensor> values = result.isTensorList()
                                               ? result.toTensorVector()
                                               : std::vector<Tensor>{result.toTensor()};
        for (size_t k = 0; k < values.size(); ++k) {
          if (places[r][k].defined()) places[r][k].copy_(values[k]);
        }
      }
    };
    queue_->Push(job, Cost());
  }

  const c10::OperatorHandle& op_;
  Stack& stack_;
  Stack arguments_;
  Optional<c10::Device> device_;
  Queue* queue_ = nullptr;
  // device tensors, and the zeros that stand for them
  std::vector<std::pair<Tensor, Tensor>> zeros_;
  std::vector<Tensor> read_;  // of the device, without out= arguments
};

}  // namespace

void Fallback(const c10::OperatorHandle& op, Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  Call(op, stack).Run();
}

bool IsOnDevice(const at::Tensor& tensor) { return tensor.device().type() == kPretend; }

size_t BytesOnDevice(const at::Tensor& tensor) {
  if (!tensor.defined() || !IsOnDevice(tensor)) return 0;
  return static_cast<size_t>(tensor.numel()) * tensor.dtype().itemsize();
}

at::Tensor AsDeviceSeesIt(const at::Tensor& tensor) {
  const auto options = at::TensorOptions().dtype(tensor.dtype());
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return at::from_blob(AsDeviceSeesIt(tensor.data_ptr()), tensor.sizes(), tensor.strides(),
                       options);
}

at::Tensor CopyFrom(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  const bool reads = IsOnDevice(source), writes = IsOnDevice(target);
  Queue& queue = CurrentQueue((reads ? source : target).device().index());
  at::Tensor from = reads ? AsDeviceSeesIt(source) : source.detach();
  at::Tensor to = writes ? AsDeviceSeesIt(target) : target.detach();
  const double cost = GetCosts().OfOperator(BytesOnDevice(source) + BytesOnDevice(target));
  const auto copy = [&queue, cost](const at::Tensor& a, const at::Tensor& b) {
    const auto job = [a, b] {
      const at::AutoDispatchBelowADInplaceOrView below;
      b.copy_(a);
    };
    queue.Push(job, cost);
  };
  if (reads && writes) {
    // A copy between devices runs after the work that is queued on the target's stream, and before
    // work that will be.
    Queue& other = CurrentQueue(target.device().index());
    Event before, after;
    before.Record(other);
    before.Block(queue);
    copy(from, to);
    after.Record(queue);
    after.Block(other);
    return target;
  }
  const bool pinned = IsPinned((reads ? target : source).data_ptr());
  // Pageable memory is staged before the device reads it, as drivers do. Pinned memory is read when
  // the stream gets there, since an earlier job of the stream may be what fills it.
  const bool staged = !reads && !pinned;
  if (staged) from = from.clone();
  copy(from, to);
  if (!staged && !(pinned && non_blocking)) queue.Synchronize();
  return target;
}

}  // namespace cadre::pretend
