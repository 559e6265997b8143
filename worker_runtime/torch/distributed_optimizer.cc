#include "worker_runtime/torch/distributed_optimizer.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "torch/utils.h"
#include "worker_runtime/hooks/all_reduce.h"
#include "worker_runtime/hooks/sixteen_bit.h"
#include "worker_runtime/torch/tensors.h"

namespace cadre::nn {
namespace {

// The library's exceptions end here. `body` returns a status.
template <typename Body>
absl::Status Guarded(const char* what, const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return absl::InternalError(
        absl::StrCat(what, ": ", absl::StrReplaceAll(error.what(), {{"\n", " "}})));
  }
}

// Groups of one type each; gradients become ready roughly in reverse.
std::vector<reduce::Bucket> Groups(absl::Span<const Parameter> parameters, size_t threshold) {
  std::vector<size_t> counts;
  std::map<DataType, std::vector<size_t>> orders;
  for (const Parameter& parameter : parameters) counts.push_back(parameter.value.count);
  for (const size_t i : reduce::ReverseOrder(parameters.size())) {
    orders[parameters[i].value.type].push_back(i);
  }
  std::vector<reduce::Bucket> groups;
  for (const auto& [type, order] : orders) {
    for (reduce::Bucket& group : hooks::FusionGroups(counts, order, threshold))
      groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DistributedOptimizer>> DistributedOptimizer::Create(
    torch::optim::Optimizer& optimizer, Communicator& communicator, absl::Duration timeout) {
  std::unique_ptr<DistributedOptimizer> result(
      new DistributedOptimizer(optimizer, communicator, timeout));
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& tensor : group.params()) {
      const std::string name = absl::StrCat("parameter ", result->tensors_.size());
      ASSIGN_OR_RETURN(const Buffer buffer, BufferOf(name, tensor));
      result->tensors_.push_back(tensor);
      result->parameters_.push_back({name, buffer, tensor.sizes().vec()});
    }
  }
  RETURN_IF_ERROR(CheckSameParameters(communicator, result->parameters_, timeout));
  if (result->tensors_.empty()) {
    return absl::InvalidArgumentError("the optimizer has no parameters");
  }
  RETURN_IF_ERROR(BroadcastParameters(communicator, result->parameters_, timeout));
  return result;
}

absl::Status DistributedOptimizer::Fail(const absl::Status& status) {
  if (status.ok() || !failure_.ok()) return failure_;
  failure_ = status;
  communicator_.Abort();
  return failure_;
}

absl::Status DistributedOptimizer::Backward(const torch::Tensor& loss) {
  RETURN_IF_ERROR(failure_);
  return Guarded("backward pass", [&] {
    optimizer_.zero_grad();
    loss.backward();
    return absl::OkStatus();
  });
}

absl::Status DistributedOptimizer::LayOut(Exchange& exchange, size_t threshold) {
  exchange.threshold = threshold;
  exchange.fused.clear();
  exchange.gradients.clear();
  exchange.buckets.clear();
  const std::vector<reduce::Bucket> groups = Groups(parameters_, threshold);
  for (const reduce::Bucket& group : groups) {
    std::vector<GradientView> views;
    size_t count = 0;
    for (const size_t i : group) {
      views.push_back({i, count, parameters_[i].value.count, parameters_[i].shape});
      count += parameters_[i].value.count;
    }
    exchange.fused.push_back(
        torch::zeros({static_cast<int64_t>(count)}, tensors_[group.front()].scalar_type()));
    exchange.gradients.push_back(std::move(views));
  }
  for (size_t b = 0; b < groups.size(); ++b) {
    ASSIGN_OR_RETURN(const Buffer buffer, BufferOf("gradients", exchange.fused[b]));
    exchange.buckets.push_back({b, groups.size(), buffer, exchange.gradients[b]});
  }
  return exchange.hook->Layout(exchange.buckets);
}

absl::Status DistributedOptimizer::Reduce(Exchange& exchange, size_t threshold) {
  const torch::NoGradGuard no_grad;
  if (exchange.buckets.empty() || exchange.threshold != threshold) {
    RETURN_IF_ERROR(LayOut(exchange, threshold));
  }
  const auto place = [&](size_t b, const GradientView& view) {
    const auto offset = static_cast<int64_t>(view.offset);
    return exchange.fused[b]
        .slice(0, offset, offset + static_cast<int64_t>(view.count))
        .view(tensors_[view.parameter].sizes());
  };
  std::vector<std::shared_ptr<Work>> works;
  for (const BucketView& bucket : exchange.buckets) {
    for (const GradientView& view : bucket.gradients) {
      torch::Tensor& gradient = tensors_[view.parameter].mutable_grad();
      if (!gradient.defined()) gradient = torch::zeros_like(tensors_[view.parameter]);
      place(bucket.index, view).copy_(gradient);
    }
    works.push_back(exchange.hook->Start(communicator_, bucket));
  }
  const MonoTime deadline = MonoNow() + timeout_;
  absl::Status status;
  for (const auto& work : works) {
    const absl::Status one = work->Wait(std::max(deadline - MonoNow(), absl::ZeroDuration()));
    // A collective under way must end before its memory may go.
    if (!one.ok() && status.ok()) communicator_.Abort();
    status.Update(one);
  }
  RETURN_IF_ERROR(status);
  for (const BucketView& bucket : exchange.buckets) {
    for (const GradientView& view : bucket.gradients) {
      tensors_[view.parameter].mutable_grad().copy_(place(bucket.index, view));
    }
  }
  return absl::OkStatus();
}

absl::Status DistributedOptimizer::Update(const torch::Tensor& loss, Exchange& exchange,
                                          size_t threshold) {
  absl::Status status = Backward(loss);
  if (status.ok()) {
    status = Guarded("exchange of gradients", [&] { return Reduce(exchange, threshold); });
  }
  RETURN_IF_ERROR(Fail(status));
  return Fail(Guarded("optimizer", [&] {
    optimizer_.step();
    return absl::OkStatus();
  }));
}

absl::Status DistributedOptimizer::BackwardAndUpdate(const torch::Tensor& loss, size_t threshold) {
  if (full_.hook == nullptr) full_.hook = std::make_shared<hooks::AllReduceHook>();
  return Update(loss, full_, threshold);
}

absl::Status DistributedOptimizer::BackwardAndUpdateHalf(const torch::Tensor& loss,
                                                         size_t threshold, bool clipping,
                                                         double clip_value) {
  const double limit = clipping ? clip_value : 0;
  if (half_.hook == nullptr || limit != half_limit_) {
    if (half_.hook != nullptr) earlier_bytes_ += half_.hook->bytes_given();
    half_ = Exchange{hooks::Fp16Hook(), 0, {}, {}, {}};
    if (clipping) half_.hook = std::make_shared<hooks::ClippingHook>(clip_value, half_.hook);
    half_limit_ = limit;
  }
  return Update(loss, half_, threshold);
}

absl::Status DistributedOptimizer::BackwardAndSparseUpdate(const torch::Tensor& loss,
                                                           size_t threshold, double sparsity,
                                                           bool top_k, bool correct) {
  const hooks::SparseOptions options{
      top_k ? hooks::SparseOptions::Select::kTopK : hooks::SparseOptions::Select::kThreshold,
      sparsity, correct};
  if (sparse_hook_ == nullptr) {
    sparse_hook_ = std::make_shared<hooks::SparseHook>(options);
    sparse_.hook = sparse_hook_;
    if (!loaded_.sparse.empty()) RETURN_IF_ERROR(Fail(sparse_hook_->LoadState(loaded_.sparse)));
  }
  sparse_hook_->set_options(options);
  if (!sparse_.buckets.empty()) RETURN_IF_ERROR(Fail(sparse_hook_->Layout(sparse_.buckets)));
  return Update(loss, sparse_, threshold);
}

absl::Status DistributedOptimizer::PreparePartial(size_t threshold) {
  if (partial_ != nullptr && threshold == partial_threshold_) return absl::OkStatus();
  if (partial_ != nullptr) earlier_bytes_ += partial_->bytes_given();
  ASSIGN_OR_RETURN(auto partial, hooks::PartialHook::Create(parameters_, threshold));
  if (partial_ == nullptr && !loaded_.partial.empty()) {
    RETURN_IF_ERROR(partial->LoadState(loaded_.partial));
  }
  partial_ = std::move(partial);
  partial_threshold_ = threshold;
  return absl::OkStatus();
}

absl::Status DistributedOptimizer::BackwardAndPartialUpdate(const torch::Tensor& loss,
                                                            size_t threshold) {
  RETURN_IF_ERROR(Fail(PreparePartial(threshold)));
  RETURN_IF_ERROR(Fail(Backward(loss)));
  RETURN_IF_ERROR(Fail(Guarded("optimizer", [&] {
    optimizer_.step();
    return absl::OkStatus();
  })));
  return Fail(partial_->AverageNextGroup(communicator_, timeout_));
}

absl::Status DistributedOptimizer::AverageParameters() {
  RETURN_IF_ERROR(failure_);
  std::shared_ptr<hooks::PartialHook> hook = partial_;
  if (hook == nullptr) {
    ASSIGN_OR_RETURN(hook, hooks::PartialHook::Create(parameters_));
  }
  return Fail(hook->AverageAll(communicator_, timeout_));
}

absl::StatusOr<DistributedOptimizer::State> DistributedOptimizer::SaveState() const {
  State state = loaded_;
  if (sparse_hook_ != nullptr) {
    ASSIGN_OR_RETURN(state.sparse, sparse_hook_->SaveState());
  }
  if (partial_ != nullptr) {
    ASSIGN_OR_RETURN(state.partial, partial_->SaveState());
  }
  return state;
}

absl::Status DistributedOptimizer::LoadState(const State& state) {
  if (sparse_hook_ != nullptr || partial_ != nullptr) {
    return absl::FailedPreconditionError(
        "the state of a DistributedOptimizer must be loaded before its first step");
  }
  loaded_ = state;
  return absl::OkStatus();
}

uint64_t DistributedOptimizer::bytes_given() const {
  uint64_t bytes = earlier_bytes_;
  for (const CommunicationHook* hook : {full_.hook.get(), half_.hook.get(), sparse_.hook.get(),
                                        static_cast<CommunicationHook*>(partial_.get())}) {
    if (hook != nullptr) bytes += hook->bytes_given();
  }
  return bytes;
}

}  // namespace cadre::nn
