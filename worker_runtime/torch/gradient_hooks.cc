#include "cadre/torch/gradient_hooks.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <utility>

#include "cadre/same_options.h"
#include "cadre/status_macros.h"
#include "cadre/torch/guarded.h"
#include "cadre/torch/recomputation.h"
#include "cadre/torch/tensors.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/utils.h"

namespace cadre::nn {

using torch::autograd::variable_list;

namespace {

// Large parameters are read and written from one end to the other several times in a step, which
// takes longer in small pages. A kernel whose memory is scattered may take longer to find others.
constexpr std::chrono::milliseconds kPatienceForPages{200};
// A device learns that a peer has gone, but not which; the ranks' hosts know that soon after.
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
    // The others wait for this rank's parameters.
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
  // A hook that computes does so in the host's memory.
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
  // Those of the last step; where they were not averaged, they are to be added to.
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

// Gradients of passes inside NoSync that are in no step yet.
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

// Gradient i is in its view.
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

// What is in .grad() of parameter i is this rank's part of the step.
void GradientHooks::Take(size_t i) {
  try {
    const torch::NoGradGuard no_grad;
    const Status dense =
        CheckDense(communicator_.rank(), trained_.parameters[i].name, trained_.tensors[i].grad());
    if (!dense.ok()) return Record(dense);
    // Outside of a step this is the error that says so.
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
  // The others wait for this rank's gradients.
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
  // Then nobody is to step.
  if (owned_gradients_ && report->skipped) optimized_steps_ = reducer_->finished_steps();
  only_local_ = false;
  const std::lock_guard<std::mutex> lock(mutex_);
  report_ = *std::move(report);
}

// Autograd has a thread for each device, which must not wait for other ranks: what is on devices is
// waited for by the thread that trains.
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
        "Finish() without a backward pass: no gradient of this module was computed since the last "
        "one");
  }
  StepReport report = *std::move(report_);
  report_.reset();
  return report;
}

}  // namespace cadre::nn
