#include "cadre/torch/data_parallel.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cadre/parameter.h"
#include "cadre/same_options.h"
#include "cadre/status_macros.h"
#include "cadre/torch/tensors.h"
#include "cadre/wait_or_abort.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/utils.h"
#include "worker_runtime/torch/device_gradients.h"
#include "worker_runtime/torch/device_links.h"
#include "worker_runtime/torch/guarded.h"
#include "worker_runtime/torch/recomputation.h"

namespace cadre::nn {
using torch::autograd::variable_list;

namespace {

// Each step goes through large parameters from end to end several times, which takes longer with
// small pages. An operating system with fragmented memory may need more time to find huge ones.
constexpr std::chrono::milliseconds kPatienceForPages{200};
// A device learns that a peer is lost, but not which one; the ranks' hosts know that soon after.
constexpr std::chrono::nanoseconds kCauseWait = std::chrono::seconds(1);

}  // namespace

// Runs after the gradient has been added to .grad(), on autograd's thread.
class GradientHooks::ReadyHook : public torch::autograd::FunctionPostHook {
 public:
  ReadyHook(GradientHooks* hooks, size_t index) : hooks_(hooks), index_(index) {}

  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    hooks_->OnReady(index_);
    return outputs;
  }

 private:
  GradientHooks* const hooks_;
  const size_t index_;
};

Result<std::unique_ptr<GradientHooks>> GradientHooks::Create(
    std::shared_ptr<torch::nn::Module> module, Communicator& communicator,
    DataParallelOptions options, const OwnerOf& owner_of) {
  std::unique_ptr<GradientHooks> hooks;
  const auto begin = [&]() -> Status {
    CADRE_RETURN_IF_ERROR(CheckArguments(module.get(), options));
    hooks.reset(new GradientHooks(module, communicator, options));
    CADRE_ASSIGN_OR_RETURN(hooks->trained_, TrainedParameters(*module));
    return owner_of == nullptr ? OkStatus() : hooks->AssignOwners(owner_of);
  };
  const Status usable = begin();
  if (!usable.ok()) {
    // The other ranks wait for this rank's parameters.
    communicator.Abort();
    return usable;
  }
  CADRE_RETURN_IF_ERROR(CheckSameOptions(
      communicator,
      {{"DataParallelOptions::broadcast_buffers", options.broadcast_buffers ? "true" : "false"}},
      options.reducer.timeout));
  hooks->trained_.CopyToHost();
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceLinks> links, hooks->ConnectDevices());
  CADRE_ASSIGN_OR_RETURN(
      hooks->reducer_, Reducer::Create(communicator, hooks->trained_.parameters, options.reducer));
  if (options.reducer.broadcast_parameters) {
    hooks->trained_.CopyFromHost();
    CADRE_RETURN_IF_ERROR(BroadcastBuffers(communicator, *module, options.reducer.timeout));
  }
  CADRE_ASSIGN_OR_RETURN(
      hooks->routed_,
      RoutedGradients::Create(*hooks->reducer_, hooks->trained_.tensors, std::move(links),
                              options.reducer, hooks->owners_, &communicator));
  MoveToHugePages(hooks->OwnParameters(), kPatienceForPages);
  CADRE_RETURN_IF_ERROR(hooks->PointAtBuckets());
  hooks->Install();
  return hooks;
}

GradientHooks::GradientHooks(std::shared_ptr<torch::nn::Module> module, Communicator& communicator,
                             DataParallelOptions options)
    : module_(std::move(module)), communicator_(communicator), options_(std::move(options)) {
  for (const auto& item : module_->named_parameters()) {
    if (item.value().defined() && !item.value().requires_grad()) {
      frozen_.emplace_back(item.key(), item.value());
    }
  }
}

GradientHooks::~GradientHooks() {
  for (const auto& [accumulator, key] : accumulators_) accumulator->del_post_hook(key);
}

Result<std::unique_ptr<DeviceLinks>> GradientHooks::ConnectDevices() {
  const bool any = std::any_of(trained_.copies.begin(), trained_.copies.end(),
                               [](const torch::Tensor& copy) { return copy.defined(); });
  if (any) {
    // Devices are connected in the order of the parameters, which must be the same everywhere.
    CADRE_RETURN_IF_ERROR(
        CheckSameParameters(communicator_, trained_.parameters, options_.reducer.timeout));
  }
  // A hook that computes does so in the host's memory, so devices are not connected for it.
  const CommunicationHook* const hook = options_.reducer.hook.get();
  const bool may_link = hook == nullptr || hook->plain_average().has_value();
  CADRE_ASSIGN_OR_RETURN(
      auto links, DeviceLinks::Connect(communicator_, trained_.tensors,
                                       may_link ? options_.connect_device : nullptr,
                                       may_link ? "" : "the communication hook computes there"));
  for (size_t i = 0; i < trained_.tensors.size() && owners_.empty(); ++i) {
    trained_.parameters[i].reduced_elsewhere = links->Reduces(trained_.tensors[i].device());
  }
  return links;
}

void GradientHooks::Install() {
  for (size_t i = 0; i < trained_.tensors.size(); ++i) {
    auto accumulator = torch::autograd::impl::grad_accumulator(trained_.tensors[i]);
    const uintptr_t key = accumulator->add_post_hook(std::make_unique<ReadyHook>(this, i));
    accumulators_.emplace_back(std::move(accumulator), key);
    storages_.push_back(trained_.tensors[i].data_ptr());
  }
}

bool GradientHooks::LivesInBucket(size_t i) const {
  const torch::Tensor& grad = trained_.tensors[i].grad();
  return grad.defined() && views_[i].defined() && grad.data_ptr() == views_[i].data_ptr() &&
         grad.strides() == views_[i].strides();
}

Status GradientHooks::PointAtBuckets() {
  torch::NoGradGuard no_grad;
  if (!views_.empty()) CADRE_RETURN_IF_ERROR(routed_->LayOut());
  std::vector<torch::Tensor> views;
  for (size_t i = 0; i < trained_.tensors.size(); ++i) {
    // The tensor shares the ownership of the bucket: a gradient may outlive this object.
    views.push_back(routed_->Holds(i) ? routed_->View(i)
                                      : torch::from_blob(
                                            reducer_->Gradient(i).data, trained_.tensors[i].sizes(),
                                            [storage = reducer_->Storage(i)](void*) {},
                                            trained_.tensors[i].options().requires_grad(false)));
    if (!views_.empty() && LivesInBucket(i)) trained_.tensors[i].mutable_grad() = views[i];
  }
  views_ = std::move(views);
  layout_ = reducer_->layout();
  return OkStatus();
}

Status GradientHooks::Prepare(double weight) {
  end_queued_ = false;  // still true where the last backward pass ended with an exception
  CADRE_RETURN_IF_ERROR(CheckHooksAlive());
  CADRE_RETURN_IF_ERROR(CheckNotBypassed());
  // The gradients of the last step are discarded; if they were not averaged, the next pass adds to
  // them.
  if (std::exchange(owned_gradients_, false)) ZeroGrad();
  if (ComparesParameters()) trained_.CopyToHost();
  CADRE_RETURN_IF_ERROR(reducer_->BeginStep(synchronize_, weight));
  if (reducer_->layout() != layout_) CADRE_RETURN_IF_ERROR(PointAtBuckets());
  routed_->BeginStep(weight / reducer_->usual_weight());
  step_ = synchronize_ ? Step::kSynchronized : Step::kLocal;
  if (synchronize_ && options_.broadcast_buffers) {
    CADRE_RETURN_IF_ERROR(
        BroadcastBuffers(communicator_, *module_, options_.timeout, &routed_->links()));
  }
  return OkStatus();
}

// Whether the reducer takes a hash of the parameters when this step begins.
bool GradientHooks::ComparesParameters() const {
  const int64_t every = options_.reducer.fingerprint_every;
  return synchronize_ && every > 0 && (reducer_->finished_steps() + 1) % every == 0;
}

void GradientHooks::BeforeForward() {
  if (!module_->is_training() || !torch::GradMode::is_enabled()) return;
  FinishPending();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) return;
    report_.reset();
  }
  Status prepared = Prepare(weight_);
  if (!prepared.ok()) Abort();
  Record(std::move(prepared));
}

Result<StepReport> GradientHooks::StepWithoutData() {
  FinishPending();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    CADRE_RETURN_IF_ERROR(failure_);
    report_.reset();
  }
  const bool accumulated = HasAccumulated();
  Status prepared = CheckMayStepWithoutData(accumulated);
  if (prepared.ok()) prepared = Prepare(accumulated ? weight_ : 0);
  if (!prepared.ok()) {
    Abort();
    Record(prepared);
    return prepared;
  }
  for (size_t i = 0; i < trained_.tensors.size() && accumulated; ++i) {
    if (trained_.tensors[i].grad().defined()) Take(i);
  }
  OnBackwardEnd();
  return Finish();
}

// Whether there are gradients of passes inside NoSync that are not part of a step yet.
bool GradientHooks::HasAccumulated() const {
  const std::vector<torch::Tensor>& tensors = trained_.tensors;
  return only_local_ && synchronize_ &&
         std::any_of(tensors.begin(), tensors.end(),
                     [](const torch::Tensor& tensor) { return tensor.grad().defined(); });
}

void GradientHooks::ZeroGrad() {
  for (torch::Tensor& tensor : trained_.tensors) tensor.mutable_grad() = torch::Tensor();
}

void GradientHooks::Abort() {
  communicator_.Abort();
  routed_->Abort();
}

void GradientHooks::Record(Status status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failure_.Update(std::move(status));
}

// Gradient i is complete in its view.
Status GradientHooks::MarkReady(size_t i) {
  if (!routed_->Holds(i)) return reducer_->MarkReady(i);
  reducer_->NoteReady(i);
  routed_->MarkReady(i);
  return OkStatus();
}

void GradientHooks::OnReady(size_t i) {
  try {
    if (!end_queued_.exchange(true)) {
      AtBackwardEnd([this] { OnBackwardEnd(); });
    }
  } catch (const std::exception& error) {
    return Record(InternalError("a backward pass: " + OneLine(error)));
  }
  Take(i);
}

// The content of .grad() of parameter i is this rank's part of the step.
void GradientHooks::Take(size_t i) {
  try {
    const torch::NoGradGuard no_grad;
    const Status dense =
        CheckDense(communicator_.rank(), trained_.parameters[i].name, trained_.tensors[i].grad());
    if (!dense.ok()) return Record(dense);
    // Outside of a step MarkReady() fails with the error that explains this.
    if (step_ != Step::kSynchronized) return Record(reducer_->MarkReady(i));
    if (LivesInBucket(i) || !owners_.empty()) return Record(MarkReady(i));
    const torch::Tensor grad = trained_.tensors[i].grad();
    if (!routed_->Holds(i) && grad.layout() == torch::kStrided && grad.is_contiguous() &&
        grad.scalar_type() == views_[i].scalar_type()) {
      Record(reducer_->MarkReady(i, grad.data_ptr()));
    } else {
      views_[i].copy_(grad);
      Record(MarkReady(i));
    }
    trained_.tensors[i].mutable_grad() = views_[i];
  } catch (const std::exception& error) {
    Record(
        InternalError("gradient of '" + reducer_->parameters()[i].name + "': " + OneLine(error)));
  }
}

void GradientHooks::FillMissing() {
  if (!owners_.empty()) return;
  for (size_t i = 0; i < trained_.tensors.size(); ++i) {
    if (routed_->Holds(i) ? routed_->IsMarked(i) : reducer_->IsMarked(i)) continue;
    if (!trained_.tensors[i].grad().defined()) {
      views_[i].zero_();
    } else if (!LivesInBucket(i)) {
      views_[i].copy_(trained_.tensors[i].grad());
    }
  }
}

void GradientHooks::PublishUsed(const StepReport& report) {
  if (!owners_.empty()) return;
  // A parameter that no rank used keeps the gradient it had, or none.
  for (size_t i = 0; i < report.used.size(); ++i) {
    if (report.used[i]) trained_.tensors[i].mutable_grad() = views_[i];
  }
}

void GradientHooks::FinishSynchronized() {
  const Status delivered = routed_->Deliver(options_.timeout);
  // The other ranks wait for this rank's gradients.
  if (!delivered.ok()) Abort();
  Record(delivered);
  const Status health = routed_->CheckHealth();
  Result<StepReport> report =
      reducer_->Finish(health.ok() ? options_.timeout : std::min(options_.timeout, kCauseWait));
  if (!health.ok() && (report.ok() || report.status().code() == StatusCode::kDeadlineExceeded)) {
    Abort();
    return Record(health);
  }
  Record(report.status());
  if (!report.ok()) return routed_->Abort();
  report->bytes += routed_->bytes_on_devices();
  routed_->Fetch(*report);
  PublishUsed(*report);
  owned_gradients_ = !owners_.empty();
  // After a skipped step no optimizer may step.
  if (owned_gradients_ && report->skipped) optimized_steps_ = reducer_->finished_steps();
  only_local_ = false;
  const std::lock_guard<std::mutex> lock(mutex_);
  report_ = *std::move(report);
}

// Autograd has a thread for each device, which must not wait for other ranks, so the training
// thread waits for the reductions on devices.
void GradientHooks::FinishPending() {
  if (!std::exchange(finish_pending_, false)) return;
  try {
    const torch::NoGradGuard no_grad;
    FinishSynchronized();
    routed_->CurrentWaits();
  } catch (const std::exception& error) {
    Record(InternalError("gradients from their device: " + OneLine(error)));
  }
}

void GradientHooks::OnBackwardEnd() {
  end_queued_ = false;
  const Step step = std::exchange(step_, Step::kNone);
  try {
    torch::NoGradGuard no_grad;
    if (step == Step::kSynchronized) {
      FillMissing();
      routed_->SendRest();
      finish_pending_ = !routed_->empty();
      if (!finish_pending_) FinishSynchronized();
      return;
    }
    if (step == Step::kNone) return;
    only_local_ = true;
    Result<StepReport> report = reducer_->Finish(options_.timeout);
    Record(report.status());
    const std::lock_guard<std::mutex> lock(mutex_);
    report_ = StepReport();
  } catch (const std::exception& error) {
    Record(InternalError("end of the backward pass: " + OneLine(error)));
  }
}

Result<StepReport> GradientHooks::Finish() {
  FinishPending();
  const std::lock_guard<std::mutex> lock(mutex_);
  CADRE_RETURN_IF_ERROR(failure_);
  if (!report_) {
    return FailedPreconditionError(
        "Finish() was called without a backward pass: no gradient of this module was computed "
        "since the last Finish()");
  }
  StepReport report = *std::move(report_);
  report_.reset();
  return report;
}

// Errors in how GradientHooks is used.

Status GradientHooks::CheckArguments(const torch::nn::Module* module,
                                     const DataParallelOptions& options) {
  if (module == nullptr) {
    return InvalidArgumentError("the module that is to be made data-parallel is null");
  }
  CADRE_RETURN_IF_ERROR(CheckTimeout("DataParallelOptions::timeout", options.timeout));
  return CheckTimeout("ReducerOptions::timeout", options.reducer.timeout);
}

Status GradientHooks::AssignOwners(const OwnerOf& owner_of) {
  if (options_.reducer.hook != nullptr) {
    return InvalidArgumentError(
        "a communication hook works on gradients that all ranks get, and not on those of owners");
  }
  for (size_t i = 0; i < trained_.tensors.size(); ++i) {
    const int owner = owner_of(trained_.tensors[i]);
    if (owner < 0) {
      return InvalidArgumentError("rank " + std::to_string(communicator_.rank()) + ": parameter '" +
                                  trained_.parameters[i].name +
                                  "' requires a gradient, but the ShardedOptimizer does not have "
                                  "it; freeze it, or make the optimizer with it");
    }
    owners_.push_back(owner);
    trained_.parameters[i].reduced_elsewhere = true;
    trained_.parameters[i].bucket_kind = owner;
  }
  return OkStatus();
}

std::vector<Parameter> GradientHooks::OwnParameters() const {
  std::vector<Parameter> own;
  for (size_t i = 0; i < trained_.tensors.size(); ++i) {
    if (!trained_.copies[i].defined()) own.push_back(trained_.parameters[i]);
  }
  return own;
}

Status GradientHooks::CheckHooksAlive() const {
  for (size_t i = 0; i < trained_.tensors.size(); ++i) {
    if (torch::autograd::impl::try_get_grad_accumulator(trained_.tensors[i]) ==
            accumulators_[i].first &&
        trained_.tensors[i].data_ptr() == storages_[i]) {
      continue;
    }
    return FailedPreconditionError("parameter '" + reducer_->parameters()[i].name +
                                   "' was given other storage after it was made data-parallel; "
                                   "load or convert the model before Create()");
  }
  for (const auto& [name, parameter] : frozen_) {
    if (!parameter.requires_grad()) continue;
    return FailedPreconditionError("rank " + std::to_string(communicator_.rank()) +
                                   ": parameter '" + name +
                                   "' was thawed after the model was made data-parallel, and its "
                                   "gradients are not reduced; make it data-parallel anew");
  }
  return OkStatus();
}

// If an optimizer stepped after local backward passes only, the replicas have diverged. Its changes
// show in the parameters' first elements; autograd's version counters do not count them. On a
// device this check would cost a wait in each step; there BeforeOptimizerStep() and the fingerprint
// find it.
Status GradientHooks::CheckNotBypassed() {
  std::vector<Parameter> firsts;
  for (const Parameter& parameter : OwnParameters()) {
    Buffer first = parameter.value;
    first.count = std::min<size_t>(first.count, 1);
    firsts.push_back({"", first, {}});
  }
  const uint64_t sample = Fingerprint(firsts);
  const bool changed = sample != sample_;
  sample_ = sample;
  if (!changed) return OkStatus();
  if (owned_gradients_ && optimized_steps_ != reducer_->finished_steps()) {
    return FailedPreconditionError(
        "rank " + std::to_string(communicator_.rank()) + ": parameters changed after step " +
        std::to_string(reducer_->finished_steps()) +
        ", but not by Step() of the ShardedOptimizer: ShardedDataParallel works with a "
        "ShardedOptimizer only");
  }
  if (!only_local_) return OkStatus();
  return FailedPreconditionError(
      "rank " + std::to_string(communicator_.rank()) + ": parameters changed after step " +
      std::to_string(reducer_->finished_steps()) +
      " although their gradients had not been reduced: run the last backward pass before the "
      "optimizer's step outside of NoSync");
}

// A static graph fixes how often each gradient becomes ready, and here there is no pass.
Status GradientHooks::CheckMayStepWithoutData(bool accumulated) const {
  if (!accumulated || !options_.reducer.static_graph) return OkStatus();
  return FailedPreconditionError(
      "rank " + std::to_string(communicator_.rank()) +
      ": StepWithoutData() was called after passes inside NoSync, with static_graph: run the last "
      "backward pass before each step outside of NoSync");
}

Status GradientHooks::BeforeOptimizerStep() {
  const std::lock_guard<std::mutex> lock(mutex_);
  CADRE_RETURN_IF_ERROR(failure_);
  const int64_t finished = reducer_->finished_steps();
  if (finished == optimized_steps_) {
    return FailedPreconditionError(
        "rank " + std::to_string(communicator_.rank()) +
        ": the optimizer would step without a reduction since step " + std::to_string(finished) +
        ": call forward() of the data-parallel model, not of the module in it, and run "
        "the backward pass outside of NoSync");
  }
  optimized_steps_ = finished;
  return OkStatus();
}

namespace {

thread_local int recomputing = 0;

// The kind of debug info that libtorch passes to every thread that works for a backward pass. It is
// an enumerator until about 2.10, then an address.
template <typename Kind>
Kind RecomputationKind() {
  if constexpr (std::is_enum_v<Kind>) {
    return static_cast<Kind>(0xCA);
  } else {
    static constexpr std::string_view kName = "cadre::nn::InnerBackward";
    return Kind(&kName);
  }
}

}  // namespace

// The callbacks of one inner pass, added by all of its threads.
class InnerBackward::Callbacks : public c10::DebugInfoBase {
 public:
  void Add(std::function<void()> callback) {
    const std::lock_guard<std::mutex> lock(mutex_);
    callbacks_.push_back(std::move(callback));
  }
  std::vector<std::function<void()>> Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(callbacks_, {});
  }
  // Returns those of the inner pass that the calling thread works for, or null if it works for
  // none.
  static Callbacks* Current() {
    return static_cast<Callbacks*>(
        c10::ThreadLocalDebugInfo::get(RecomputationKind<c10::DebugInfoKind>()));
  }

 private:
  std::mutex mutex_;
  std::vector<std::function<void()>> callbacks_;
};

void AtBackwardEnd(std::function<void()> callback) {
  if (auto* const inner = InnerBackward::Callbacks::Current()) {
    inner->Add(std::move(callback));
  } else {
    torch::autograd::Engine::get_default_engine().queue_callback(std::move(callback));
  }
}

bool IsRecomputing() { return recomputing > 0; }

Recomputing::Recomputing() { ++recomputing; }
Recomputing::~Recomputing() { --recomputing; }

InnerBackward::InnerBackward()
    : callbacks_(std::make_shared<Callbacks>()),
      guard_(std::make_unique<c10::DebugInfoGuard>(RecomputationKind<c10::DebugInfoKind>(),
                                                   callbacks_)) {}

void InnerBackward::End() {
  guard_.reset();
  for (std::function<void()>& callback : callbacks_->Take()) AtBackwardEnd(std::move(callback));
}

}  // namespace cadre::nn
