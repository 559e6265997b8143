#include "cadre/torch/distributed_optimizer.h"

#include <chrono>
#include <functional>
#include <map>
#include <utility>

#include "cadre/hooks/all_reduce.h"
#include "cadre/hooks/sixteen_bit.h"
#include "cadre/same_options.h"
#include "cadre/status_macros.h"
#include "cadre/torch/device_stream.h"
#include "cadre/torch/sharded_grad_scaler.h"
#include "cadre/torch/tensors.h"
#include "cadre/wait_or_abort.h"
#include "torch/optim/lbfgs.h"
#include "torch/utils.h"
#include "worker_runtime/torch/device_links.h"
#include "worker_runtime/torch/guarded.h"

namespace cadre::nn {

// Averages gradients in the device memory where autograd put them, by the device's communicator. A
// DistributedOptimizer uses it in place of a hook that is only an average.
//
// Start() and Finish() alternate, on one thread; all ranks call Start() for theirs in the same
// order. Throws what libtorch throws.
class DeviceAverage {
 public:
  // The parameters have one type and are on the device of `stream`, on which `communicator` runs.
  // `communicator` is null if there is only one rank.
  DeviceAverage(DeviceStream& stream, Communicator* communicator,
                std::vector<torch::Tensor> parameters, const PlainAverage& average);
  ~DeviceAverage();
  DeviceAverage(DeviceAverage&&) = default;

  // Starts after the work on the calling thread's current stream. A missing gradient counts as
  // zeros.
  void Start();
  // Waits until the device is done; the parameters' gradients are then the average. Returns an
  // error of the communicator, which is then aborted.
  Status Finish(std::chrono::nanoseconds timeout);
  // Bytes passed to collectives in a step.
  size_t bytes() const;

 private:
  torch::ScalarType SentType() const;

  DeviceStream* stream_;
  Communicator* communicator_;
  std::vector<torch::Tensor> parameters_;
  PlainAverage average_;
  // The gradients, one after the other; used between Start() and Finish().
  torch::Tensor flat_;
  std::shared_ptr<Work> work_;
};

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           Communicator& communicator,
                                           std::chrono::nanoseconds timeout)
    : optimizer_(optimizer), communicator_(communicator), timeout_(timeout) {}

DistributedOptimizer::~DistributedOptimizer() = default;

Result<std::unique_ptr<DistributedOptimizer>> DistributedOptimizer::Create(
    torch::optim::Optimizer& optimizer, Communicator& communicator,
    std::chrono::nanoseconds timeout, const ConnectDevice& connect_device) {
  std::unique_ptr<DistributedOptimizer> result(
      new DistributedOptimizer(optimizer, communicator, timeout));
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    return InvalidArgumentError(
        "LBFGS computes the loss several times in a step, which a DistributedOptimizer does once");
  }
  NamedTensors all;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& tensor : group.params()) {
      CADRE_RETURN_IF_ERROR(result->AddPlace(tensor, &all));
    }
  }
  CADRE_RETURN_IF_ERROR(CheckSameParameters(communicator, all.parameters, timeout));
  if (result->trained_.tensors.empty()) {
    return InvalidArgumentError("the optimizer has no parameters that require a gradient");
  }
  all.CopyToHost();
  CADRE_RETURN_IF_ERROR(BroadcastParameters(communicator, all.parameters, timeout));
  all.CopyFromHost();
  CADRE_ASSIGN_OR_RETURN(
      result->links_, DeviceLinks::Connect(communicator, result->trained_.tensors, connect_device));
  return result;
}

Status DistributedOptimizer::AddPlace(const torch::Tensor& tensor, NamedTensors* all) {
  const std::string name = "parameter " + std::to_string(places_.size());
  CADRE_RETURN_IF_ERROR(all->Add(name, tensor));
  const bool trained = tensor.requires_grad();
  places_.push_back({tensor, trained});
  if (trained) return trained_.Add(name, tensor);
  std::string& kept_as = all->parameters.back().kept_as;
  kept_as += kept_as.empty() ? "frozen" : ", frozen";
  return OkStatus();
}

// Parameters that were added or thawed since would never be exchanged, and frozen ones would go on
// with gradients of zero.
Status DistributedOptimizer::CheckUnchanged() const {
  const auto changed = [this](size_t at, const std::string& what) {
    return FailedPreconditionError("rank " + std::to_string(communicator_.rank()) + ": parameter " +
                                   std::to_string(at) + " of the optimizer " + what +
                                   " after the DistributedOptimizer was made; save its state, make "
                                   "a new one, and load it there");
  };
  size_t at = 0;
  for (const auto& group : optimizer_.param_groups()) {
    for (const torch::Tensor& now : group.params()) {
      if (at == places_.size() || !now.is_same(places_[at].tensor)) {
        return changed(at, "was added or replaced");
      }
      if (now.requires_grad() != places_[at].trained) {
        return changed(at, places_[at].trained ? "was frozen" : "was thawed");
      }
      ++at;
    }
  }
  return at == places_.size() ? OkStatus() : changed(at, "was taken out");
}

Status DistributedOptimizer::Fail(const Status& status) {
  if (status.ok() || !failure_.ok()) return failure_;
  failure_ = status;
  communicator_.Abort();
  if (links_ != nullptr) links_->Abort();
  return failure_;
}

Status DistributedOptimizer::Backward(const torch::Tensor& loss, bool* overflowed) {
  *overflowed = false;
  CADRE_RETURN_IF_ERROR(failure_);
  CADRE_RETURN_IF_ERROR(CheckUnchanged());
  CADRE_RETURN_IF_ERROR(Guarded("backward pass", [&] {
    optimizer_.zero_grad();
    (scaler_ == nullptr ? loss : scaler_->Scale(loss)).backward();
    return OkStatus();
  }));
  if (scaler_ == nullptr) return OkStatus();
  CADRE_RETURN_IF_ERROR(scaler_->Unscale(optimizer_));
  *overflowed = scaler_->found_non_finite(optimizer_);
  return *overflowed ? StepOptimizer() : OkStatus();
}

Status DistributedOptimizer::StepOptimizer() {
  if (scaler_ != nullptr) {
    CADRE_RETURN_IF_ERROR(scaler_->Step(optimizer_).status());
    return scaler_->Update();
  }
  return Guarded("optimizer", [&] {
    optimizer_.step();
    return OkStatus();
  });
}

// Each group has one type and one device. The order is reversed because gradients become ready
// roughly in that order.
std::vector<std::vector<size_t>> DistributedOptimizer::Groups(const CommunicationHook& hook,
                                                              bool on_devices,
                                                              size_t threshold) const {
  const bool devices_average = hook.plain_average().has_value();
  std::vector<size_t> counts;
  std::map<std::string, std::vector<size_t>> orders;
  for (const Parameter& parameter : trained_.parameters) counts.push_back(parameter.value.count);
  for (size_t i = trained_.tensors.size(); i-- > 0;) {
    const torch::Tensor& tensor = trained_.tensors[i];
    if ((devices_average && links_->Reduces(tensor.device())) != on_devices) continue;
    const torch::ScalarType type =
        on_devices ? tensor.scalar_type() : ReducedType(tensor.scalar_type());
    orders[(on_devices ? tensor.device().str() : "") + torch::toString(type)].push_back(i);
  }
  std::vector<std::vector<size_t>> groups;
  for (const auto& [kind, order] : orders) {
    for (std::vector<size_t>& group : hooks::FusionGroups(counts, order, threshold))
      groups.push_back(std::move(group));
  }
  return groups;
}

void DistributedOptimizer::LayOutDevices(Exchange& exchange, size_t threshold) {
  exchange.on_devices.clear();
  for (const std::vector<size_t>& group : Groups(*exchange.hook, /*on_devices=*/true, threshold)) {
    std::vector<torch::Tensor> members;
    for (const size_t i : group) members.push_back(trained_.tensors[i]);
    const torch::Device device = members.front().device();
    exchange.on_devices.push_back(
        std::make_unique<DeviceAverage>(links_->StreamOf(device), links_->CommunicatorOf(device),
                                        std::move(members), *exchange.hook->plain_average()));
  }
}

Status DistributedOptimizer::LayOut(Exchange& exchange, size_t threshold) {
  CADRE_RETURN_IF_ERROR(CheckSameOptions(communicator_,
                                         {{"mode", exchange.mode},
                                          {"threshold", std::to_string(threshold)},
                                          {"way to send", exchange.hook->DescribeOptions()}},
                                         timeout_));
  exchange.threshold = threshold;
  exchange.fused.clear();
  exchange.gradients.clear();
  exchange.buckets.clear();
  LayOutDevices(exchange, threshold);
  const auto groups = Groups(*exchange.hook, /*on_devices=*/false, threshold);
  for (const std::vector<size_t>& group : groups) {
    std::vector<GradientView> views;
    size_t count = 0;
    for (const size_t i : group) {
      views.push_back({i, count, trained_.parameters[i].value.count, trained_.parameters[i].shape});
      count += trained_.parameters[i].value.count;
    }
    exchange.fused.push_back(torch::zeros(
        {static_cast<int64_t>(count)}, ReducedType(trained_.tensors[group.front()].scalar_type())));
    exchange.gradients.push_back(std::move(views));
  }
  for (size_t b = 0; b < groups.size(); ++b) {
    CADRE_ASSIGN_OR_RETURN(const Buffer buffer, BufferOf("gradients", exchange.fused[b]));
    exchange.buckets.push_back({b, groups.size(), buffer, exchange.gradients[b]});
  }
  return exchange.hook->Layout(exchange.buckets);
}

Status DistributedOptimizer::Reduce(Exchange& exchange, size_t threshold) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < trained_.tensors.size(); ++i) {
    CADRE_RETURN_IF_ERROR(
        CheckDense(communicator_.rank(), trained_.parameters[i].name, trained_.tensors[i].grad()));
  }
  if ((exchange.buckets.empty() && exchange.on_devices.empty()) ||
      exchange.threshold != threshold) {
    CADRE_RETURN_IF_ERROR(LayOut(exchange, threshold));
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  for (const auto& average : exchange.on_devices) average->Start();
  CADRE_RETURN_IF_ERROR(ReduceOnHost(exchange, deadline));
  for (const auto& average : exchange.on_devices) {
    CADRE_RETURN_IF_ERROR(average->Finish(deadline - std::chrono::steady_clock::now()));
    device_bytes_ += average->bytes();
  }
  return OkStatus();
}

Status DistributedOptimizer::ReduceOnHost(Exchange& exchange,
                                          std::chrono::steady_clock::time_point deadline) {
  const auto place = [&](size_t b, const GradientView& view) {
    const auto offset = static_cast<int64_t>(view.offset);
    return exchange.fused[b]
        .slice(0, offset, offset + static_cast<int64_t>(view.count))
        .view(trained_.tensors[view.parameter].sizes());
  };
  std::vector<std::shared_ptr<Work>> works;
  for (const BucketView& bucket : exchange.buckets) {
    for (const GradientView& view : bucket.gradients) {
      torch::Tensor& gradient = trained_.tensors[view.parameter].mutable_grad();
      if (!gradient.defined()) gradient = torch::zeros_like(trained_.tensors[view.parameter]);
      place(bucket.index, view).copy_(gradient);
    }
    works.push_back(exchange.hook->Start(communicator_, bucket));
  }
  Status status;
  for (const auto& work : works) {
    // A pending collective must end before its memory may be freed.
    if (!status.ok()) {
      work->Wait(kAbortGrace).IgnoreError();
      continue;
    }
    status = WaitOrAbort(communicator_, work, deadline - std::chrono::steady_clock::now());
  }
  CADRE_RETURN_IF_ERROR(status);
  for (const BucketView& bucket : exchange.buckets) {
    for (const GradientView& view : bucket.gradients) {
      trained_.tensors[view.parameter].mutable_grad().copy_(place(bucket.index, view));
    }
  }
  return OkStatus();
}

Status DistributedOptimizer::Update(const torch::Tensor& loss, Exchange& exchange,
                                    size_t threshold) {
  bool overflowed = false;
  CADRE_RETURN_IF_ERROR(Fail(Backward(loss, &overflowed)));
  if (overflowed) return OkStatus();
  CADRE_RETURN_IF_ERROR(
      Fail(Guarded("exchange of gradients", [&] { return Reduce(exchange, threshold); })));
  return Fail(StepOptimizer());
}

Status DistributedOptimizer::BackwardAndUpdate(const torch::Tensor& loss, size_t threshold) {
  if (full_.hook == nullptr) {
    full_.mode = "BackwardAndUpdate()";
    full_.hook = std::make_shared<hooks::AllReduceHook>();
  }
  return Update(loss, full_, threshold);
}

Status DistributedOptimizer::BackwardAndUpdateHalf(const torch::Tensor& loss, size_t threshold,
                                                   bool clipping, double clip_value) {
  CADRE_RETURN_IF_ERROR(failure_);
  const double limit = clipping ? clip_value : 0;
  if (half_.hook == nullptr || limit != half_limit_) {
    if (half_.hook != nullptr) earlier_bytes_ += half_.hook->bytes_given();
    half_ = Exchange();
    half_.mode = "BackwardAndUpdateHalf()";
    half_.hook = hooks::Fp16Hook();
    if (clipping) half_.hook = std::make_shared<hooks::ClippingHook>(clip_value, half_.hook);
    half_limit_ = limit;
  }
  return Update(loss, half_, threshold);
}

Status DistributedOptimizer::BackwardAndSparseUpdate(const torch::Tensor& loss, size_t threshold,
                                                     double sparsity, bool top_k, bool correct) {
  const hooks::SparseOptions options{
      top_k ? hooks::SparseOptions::Select::kTopK : hooks::SparseOptions::Select::kThreshold,
      sparsity, correct};
  if (sparse_hook_ == nullptr) {
    sparse_hook_ = std::make_shared<hooks::SparseHook>(options);
    sparse_.mode = "BackwardAndSparseUpdate()";
    sparse_.hook = sparse_hook_;
    if (!loaded_.sparse.empty())
      CADRE_RETURN_IF_ERROR(Fail(sparse_hook_->LoadState(loaded_.sparse)));
  }
  sparse_hook_->set_options(options);
  if (!sparse_.buckets.empty()) CADRE_RETURN_IF_ERROR(Fail(sparse_hook_->Layout(sparse_.buckets)));
  return Update(loss, sparse_, threshold);
}

Status DistributedOptimizer::PreparePartial(size_t threshold) {
  if (partial_ != nullptr && threshold == partial_threshold_) return OkStatus();
  if (partial_ != nullptr) earlier_bytes_ += partial_->bytes_given();
  CADRE_ASSIGN_OR_RETURN(auto partial, hooks::PartialHook::Create(trained_.parameters, threshold));
  if (partial_ == nullptr && !loaded_.partial.empty()) {
    CADRE_RETURN_IF_ERROR(partial->LoadState(loaded_.partial));
  }
  partial_ = std::move(partial);
  partial_threshold_ = threshold;
  return OkStatus();
}

Status DistributedOptimizer::BackwardAndPartialUpdate(const torch::Tensor& loss, size_t threshold) {
  CADRE_RETURN_IF_ERROR(Fail(PreparePartial(threshold)));
  bool overflowed = false;
  CADRE_RETURN_IF_ERROR(Fail(Backward(loss, &overflowed)));
  if (overflowed) return OkStatus();
  CADRE_RETURN_IF_ERROR(Fail(StepOptimizer()));
  return Fail(OnHost([&] { return partial_->AverageNextGroup(communicator_, timeout_); }));
}

// `average` works on copies of the parameters' values on the host.
Status DistributedOptimizer::OnHost(const std::function<Status()>& average) {
  return Guarded("average of parameters", [&] {
    trained_.CopyToHost();
    CADRE_RETURN_IF_ERROR(average());
    trained_.CopyFromHost();
    return OkStatus();
  });
}

Status DistributedOptimizer::AverageParameters() {
  CADRE_RETURN_IF_ERROR(failure_);
  std::shared_ptr<hooks::PartialHook> hook = partial_;
  if (hook == nullptr) {
    CADRE_ASSIGN_OR_RETURN(hook, hooks::PartialHook::Create(trained_.parameters));
  }
  return Fail(OnHost([&] { return hook->AverageAll(communicator_, timeout_); }));
}

Result<DistributedOptimizer::State> DistributedOptimizer::SaveState() const {
  State state = loaded_;
  if (sparse_hook_ != nullptr) {
    CADRE_ASSIGN_OR_RETURN(state.sparse, sparse_hook_->SaveState());
  }
  if (partial_ != nullptr) {
    CADRE_ASSIGN_OR_RETURN(state.partial, partial_->SaveState());
  }
  return state;
}

Status DistributedOptimizer::LoadState(const State& state) {
  if (sparse_hook_ != nullptr || partial_ != nullptr) {
    return FailedPreconditionError(
        "the state of a DistributedOptimizer must be loaded before its first step");
  }
  loaded_ = state;
  return OkStatus();
}

uint64_t DistributedOptimizer::bytes_given() const {
  uint64_t bytes = earlier_bytes_ + device_bytes_;
  for (const CommunicationHook* hook : {full_.hook.get(), half_.hook.get(), sparse_.hook.get(),
                                        static_cast<CommunicationHook*>(partial_.get())}) {
    if (hook != nullptr) bytes += hook->bytes_given();
  }
  return bytes;
}

DeviceAverage::DeviceAverage(DeviceStream& stream, Communicator* communicator,
                             std::vector<torch::Tensor> parameters, const PlainAverage& average)
    : stream_(&stream),
      communicator_(communicator),
      parameters_(std::move(parameters)),
      average_(average) {}

DeviceAverage::~DeviceAverage() {
  if (work_ != nullptr) (void)work_->Wait(kLastDeviceWait);
}

torch::ScalarType DeviceAverage::SentType() const {
  return TypeSent(average_, parameters_.front().scalar_type());
}

size_t DeviceAverage::bytes() const {
  if (communicator_ == nullptr) return 0;
  size_t count = 0;
  for (const torch::Tensor& parameter : parameters_) count += parameter.numel();
  return count * SizeOf(*DataTypeOf(SentType()));
}

void DeviceAverage::Start() {
  if (const auto current = stream_->Current()) stream_->WaitFor(*current);
  const DeviceStream::Scope on(*stream_);
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& parameter : parameters_) {
    const torch::Tensor& grad = parameter.grad();
    if (grad.defined()) stream_->Uses(grad);
    parts.push_back(grad.defined() ? grad.reshape({-1})
                                   : torch::zeros({parameter.numel()}, parameter.options()));
  }
  flat_ = torch::cat(parts);
  if (average_.limit) flat_.clamp_(-*average_.limit, *average_.limit);
  flat_ = flat_.to(SentType());
  if (communicator_ == nullptr || flat_.numel() == 0) return;
  const Reduction average = AverageOf(flat_, communicator_->size());
  work_ = communicator_->AllReduce(BufferOfFlat(flat_), average);
}

Status DeviceAverage::Finish(std::chrono::nanoseconds timeout) {
  if (work_ != nullptr) {
    const Status reduced = WaitOrAbort(*communicator_, work_, timeout);
    if (!reduced.ok()) return reduced;
    work_ = nullptr;
  }
  {
    const DeviceStream::Scope on(*stream_);
    flat_ = flat_.to(parameters_.front().scalar_type());
  }
  stream_->CurrentWaits();
  stream_->CurrentUses(flat_);
  int64_t offset = 0;
  for (torch::Tensor& parameter : parameters_) {
    parameter.mutable_grad() = PartOf(flat_, offset, parameter.sizes());
    offset += parameter.numel();
  }
  flat_ = torch::Tensor();
  return Status();
}

}  // namespace cadre::nn
