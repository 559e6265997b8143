#include "worker_runtime/torch/pretend_device/fallback.h"

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/as_strided_native.h"
#include "worker_runtime/torch/pretend_device/copies.h"
#include "worker_runtime/torch/pretend_device/costs.h"
#include "worker_runtime/torch/pretend_device/optional.h"
#include "worker_runtime/torch/pretend_device/queue.h"
#include "worker_runtime/torch/pretend_device/streams.h"

namespace cadre::pretend {
namespace {

using at::Tensor;
using torch::jit::Stack;

at::TensorOptions OnHost(const Tensor& tensor) { return at::TensorOptions().dtype(tensor.dtype()); }

// `value` with each tensor in it replaced by what `function` makes of it.
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
    // An out= argument of another size.
    for (const auto& [tensor, zero] : zeros_) {
      if (tensor.sizes() != zero.sizes()) tensor.resize_(zero.sizes());
    }
    Enqueue(zeros);
  }

 private:
  // A place in the device's memory, and a CPU tensor that is to be copied there.
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

  // What the device computes with. An out= argument goes in as an empty tensor and is copied back,
  // because some kernels resize it on the way.
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

  // The result that `zero` stands for; `copied_to`: where the true one is to be copied, undefined
  // where it gets there by itself.
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

  // Of the call whose results have been put on the stack. Views cost nothing.
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
    // An element has as many products as the last factor has rows.
    const int64_t terms = read_.back().size(-2);
    return GetCosts().OfOperator(bytes, static_cast<double>(last_result.numel() * terms));
  }

  // Whether a result is an argument's memory seen in another way.
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
  std::vector<std::pair<Tensor, Tensor>> zeros_;  // of the device, and what stands for it
  std::vector<Tensor> read_;                      // of the device, without out= arguments
};

}  // namespace

void Fallback(const c10::OperatorHandle& op, Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  Call(op, stack).Run();
}

}  // namespace cadre::pretend
